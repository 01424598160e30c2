// Finds what earlier jobs of this user left on this host, and ends it: `hvdrun clean`.
//
// Only a keeper or an agent is ever taken for one, and what is below it: a process of this user and
// this pid namespace that has the name of one as its command's name and as its whole command line,
// and runs a file called hvdrun. A job lives as long as the process that started its keeper does,
// which is hvdrun here, and an sshd for hvdrun elsewhere.
#pragma once

#include <string>
#include <vector>

#include "proto/rendezvous.pb.h"

namespace hvd {

struct CleanOrder {
  bool dry_run = false;  // only tells
  bool all = false;      // living jobs, too
};

// `build`: AgentFile::name() of this program, whose copy stays.
proto::CleanReport clean_host(const CleanOrder& order, const std::string& build);

// "ended what a job had left (agent 12, 3 processes)", a line for each thing; never none.
std::vector<std::string> describe(const proto::CleanReport& report, const CleanOrder& order);

}  // namespace hvd
