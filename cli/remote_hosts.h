// The hosts of a job that are reached by ssh: starts an agent on each, gives it a certificate, and
// has hvdrun listen where it sees hvdrun.
//
// Lives on the supervisor's loop.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/awaited_hosts.h"
#include "cli/carrier.h"
#include "cli/hello.h"
#include "cli/job_spec.h"
#include "cli/loop.h"
#include "cli/ssh/agent_file.h"
#include "cli/ssh/ssh_carrier.h"
#include "cli/start_state.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/credentials.h"
#include "rendezvous/server.h"

namespace hvd {

struct FailedHost {
  int host;
  std::string reason;
  bool of_ours = false;  // it is this machine's, and no host's
};
// A line for each, the first of all last: at most so many, and the names of the rest. Of reasons of
// this machine's a line alone, where several hosts have one.
std::vector<std::string> no_agent_lines(const std::vector<FailedHost>& failed,
                                        const std::vector<Host>& hosts);

class RemoteHosts {
 public:
  struct Events {
    // `way_in` is the part of its bootstrap that says how it comes to hvdrun.
    std::function<void(int host, AgentChannels channels, const proto::Bootstrap& way_in,
                       const Hello& hello)>
        started;
    // Those that have failed by a moment after the first did, which comes first, and those that
    // were only tried again: who mends one need not meet the next. No other host starts any more.
    std::function<void(const std::vector<FailedHost>& hosts)> failed;
    // SshCarrier::Callbacks
    std::function<void(int host, const std::string& what)> noted;
    std::function<void(int host, const std::vector<std::string>& keys)> new_keys;
  };
  // `server` is one with a RendezvousServer::Remote of `authority`. Throws kUnavailable when this
  // program's own file cannot be read. `offer`, if any, goes to each host before its agent starts.
  RemoteHosts(Loop& loop, RendezvousServer& server, const JobAuthority& authority,
              const JobSpec& spec, const StartState& start, const ShipOffer* offer, Events events);

  void start(int host);
  // Who has not started never will.
  void stop();
  // Nor does any ssh run on, or what it started. Not from an event.
  void end() { carrier_->end(); }
  bool waiting() const { return !starting_.empty() || !failed_.empty(); }
  // Bytes are on their way to one of them, and have been for a while if they are the agent's.
  bool sending(TimePoint now) const;

  void excuse(Clock::duration time);  // it was not hvdrun's: the hosts have so much longer
  void turn(TimePoint now);
  std::optional<TimePoint> next_deadline() const;
  void kill_ssh(pid_t pid) const { carrier_->kill_ssh(pid); }
  bool is_ssh(pid_t pid) const { return carrier_->is_ssh(pid); }
  bool child_ended(pid_t pid, int wait_status) { return carrier_->child_ended(pid, wait_status); }
  std::vector<AwaitedHost> progress(TimePoint now) const;

 private:
  void on_started(int host, AgentChannels channels, const std::string& hello);
  void on_failed(FailedHost failed);
  void tell_failed();
  std::vector<std::string> way_to_hvdrun(const Hello& hello);

  RendezvousServer& server_;
  const JobAuthority& authority_;
  const JobSpec& spec_;
  const Events events_;
  AgentFile file_;
  const std::set<std::string> addresses_;       // of this machine, loopback left out
  std::map<std::string, std::string> listens_;  // on an address of ours -> with the port
  std::set<int> starting_;
  std::vector<FailedHost> failed_;  // not told yet
  TimePoint tell_failed_at_;
  bool stopped_ = false;
  std::optional<SshCarrier> carrier_;
};

}  // namespace hvd
