// Finds what earlier jobs of this user left on this host, and ends it: `hvdrun clean`.
//
// Only processes of this user and this pid namespace are. A keeper or an agent has the name of one
// as its command's name and as its whole command line, and runs a file called hvdrun; it is ended
// with what is below it. A job lives as long as the process that started its keeper does, which is
// hvdrun here, and an sshd for hvdrun elsewhere. Where keeper and agent were killed together, what
// ranks had started hangs on the host's first process, or who else takes in orphans: it is known by
// the HVD_AGENT in its environment, at whose address nobody listens any more.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "cli/host_identity.h"
#include "proto/rendezvous.pb.h"

namespace hvd {

struct CleanOrder {
  bool dry_run = false;  // only tells
  bool all = false;      // living jobs, too
  // Of this one alone (TORCHELASTIC_RUN_ID), and nothing but what has lost keeper and agent.
  std::string job = {};
};

// What tells another host's hvdrun agent of it.
std::vector<std::string> role_words(const CleanOrder& order);

// What cannot be ended is waited for, of all jobs at once. Who waits for this on another host
// allows for kCleaningMost, or, with CleanOrder::job, for kOneJobMost: that is asked of a lost host
// alone, which hvdrun gives up 11 s after it was heard last (HostAgent::over_at()). A beat of 1 s
// may lie between that and the question, and 3 s are left for ssh.
inline constexpr std::chrono::seconds kCleaningMost{15};
inline constexpr std::chrono::milliseconds kOneJobMost{7000};
// `build`: AgentFile::name() of this program, whose copy stays.
proto::CleanReport clean_host(const CleanOrder& order, const std::string& build);

// Whether nothing of the job that was asked for can run on that host: it says so, and is the one
// that is meant, not another one behind the same name. Pure.
bool nobody_lives(const proto::CleanReport& report, const HostIdentity& host);

// "ended what a job had left (agent 12, 3 processes)", a line for each thing; never none.
std::vector<std::string> describe(const proto::CleanReport& report, const CleanOrder& order);

}  // namespace hvd
