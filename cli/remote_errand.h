// A role of hvdrun's, run on hosts that are reached by ssh: it does one thing there, says in one
// message what came of it, and ends.
//
// Lives on its owner's loop and thread, as SshCarrier does.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/job_spec.h"
#include "cli/loop.h"
#include "cli/ssh/agent_file.h"
#include "cli/ssh/ssh_carrier.h"
#include "cli/start_state.h"

namespace hvd {

class RemoteErrand {
 public:
  // Each host gets one of them, once; or both, when `told` says that the message is none.
  struct Events {
    std::function<bool(int host, const std::string& message)> told;
    std::function<void(int host, const std::string& reason)> failed;
    // SshCarrier::Callbacks; run_errand() says it.
    std::function<void(const std::vector<std::string>& keys)> new_keys = {};
  };

  // `role`: the words behind `hvdrun agent`. Throws kUnavailable when this program's own file
  // cannot be read.
  RemoteErrand(Loop& loop, const JobSpec& spec, const StartState& start,
               std::vector<std::string> role, Events events);

  // `host` is its place in spec.hosts, patience and `there` as SshCarrier has them. At `until` it
  // has failed, also where many others came first and it had no turn.
  void start(int host, Clock::duration patience, Deadline there,
             TimePoint until = TimePoint::max());
  void end() { carrier_.end(); }
  bool waiting() const { return !waiting_.empty(); }
  bool waits_for(int host) const { return waiting_.contains(host); }
  void turn(TimePoint now);
  std::optional<TimePoint> next_deadline() const;
  void kill_ssh(pid_t pid) const { carrier_.kill_ssh(pid); }
  bool is_ssh(pid_t pid) const { return carrier_.is_ssh(pid); }
  bool child_ended(pid_t pid, int wait_status) { return carrier_.child_ended(pid, wait_status); }

 private:
  void on_told(int host, const std::string& message);
  void on_failed(int host, const std::string& reason);

  const JobSpec& spec_;
  const Events events_;
  AgentFile file_;
  std::map<int, TimePoint> waiting_;  // by host: until then
  SshCarrier carrier_;
};

// On all remote hosts of the job, to the end; a signal that ends hvdrun ends it. Throws as
// RemoteErrand(), and kInvalidArgument for words for ssh with which it would not get there.
void run_errand(const JobSpec& spec, const StartState& start, std::vector<std::string> role,
                RemoteErrand::Events events);

}  // namespace hvd
