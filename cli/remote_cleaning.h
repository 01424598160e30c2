// `hvdrun clean` on hosts that are reached by ssh: a role of hvdrun's runs there, ends what was
// left and says what came of it.
//
// Lives on its owner's loop and thread, as SshCarrier does.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "cli/agent/clean_host.h"
#include "cli/host_identity.h"
#include "cli/job_spec.h"
#include "cli/loop.h"
#include "cli/ssh/agent_file.h"
#include "cli/ssh/ssh_carrier.h"
#include "cli/start_state.h"
#include "proto/rendezvous.pb.h"

namespace hvd {

// Whether nothing of the job that was asked for can run on that host: it says so, and is the one
// that is meant, not another one behind the same name. Pure.
bool nobody_lives(const proto::CleanReport& report, const HostIdentity& host);

class RemoteCleaning {
 public:
  // Each host gets one of them, once.
  struct Events {
    std::function<void(int host, const proto::CleanReport& report)> told;
    std::function<void(int host, const std::string& reason)> failed;
  };

  // Throws kUnavailable when this program's own file cannot be read.
  RemoteCleaning(Loop& loop, const JobSpec& spec, const StartState& start, const CleanOrder& order,
                 Events events);

  // `host` is its place in spec.hosts, the rest as SshCarrier has it.
  void start(int host, Deadline deadline, Deadline there);
  void end() { carrier_.end(); }
  bool waiting() const { return !waiting_.empty(); }
  bool waits_for(int host) const { return waiting_.contains(host); }
  void turn(TimePoint now) { carrier_.turn(now); }
  std::optional<TimePoint> next_deadline() const { return carrier_.next_deadline(); }
  void kill_ssh(pid_t pid) const { carrier_.kill_ssh(pid); }
  bool child_ended(pid_t pid, int wait_status) { return carrier_.child_ended(pid, wait_status); }

 private:
  void on_told(int host, const std::string& words);
  void on_failed(int host, const std::string& reason);

  const JobSpec& spec_;
  const Events events_;
  AgentFile file_;
  std::set<int> waiting_;
  SshCarrier carrier_;
};

}  // namespace hvd
