#include "cli/remote_errand.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <utility>

#include "cli/agent/descendants.h"
#include "cli/agent/worker_environment.h"
#include "cli/job_log.h"
#include "cli/signals.h"
#include "cli/ssh/ssh_words.h"
#include "runtime/base/error.h"

namespace hvd {

// Who has told has ended, and its ssh, which we may not wait for, goes with what it started.
RemoteErrand::RemoteErrand(Loop& loop, const JobSpec& spec, const StartState& start,
                           std::vector<std::string> role, Events events)
    : spec_(spec),
      events_(std::move(events)),
      file_("/proc/self/exe"),
      carrier_(loop, file_,
               {.ssh = spec.ssh,
                .environment = start.environment,
                .path = value_in(start.environment, "PATH", kDefaultPath),
                .role = std::move(role),
                .ends_after_hello = true},
               {.started =
                    [this](int host, const AgentChannels& channels, const std::string& message) {
                      carrier_.kill_ssh(channels.pid);
                      on_told(host, message);
                    },
                .failed = [this](int host, const std::string& reason) { on_failed(host, reason); },
                .new_keys =
                    [this](int, const std::vector<std::string>& keys) {
                      if (events_.new_keys) events_.new_keys(keys);
                    }}) {}

void RemoteErrand::start(int host, Clock::duration patience, Deadline there, TimePoint until) {
  waiting_[host] = until;
  carrier_.start(host, spec_.hosts.at(size_t(host)), patience, there);
}

void RemoteErrand::turn(TimePoint now) {
  carrier_.turn(now);
  std::vector<int> late;
  for (const auto& [host, until] : waiting_)
    if (now >= until) late.push_back(host);
  for (const int host : late) {
    carrier_.give_up(host);
    on_failed(host, "its time was over before anything was heard");
  }
}

std::optional<TimePoint> RemoteErrand::next_deadline() const {
  TimePoint next = carrier_.next_deadline().value_or(TimePoint::max());
  for (const auto& [host, until] : waiting_) next = std::min(next, until);
  return next == TimePoint::max() ? std::nullopt : std::optional(next);
}

void RemoteErrand::on_told(int host, const std::string& message) {
  waiting_.erase(host);
  if (!events_.told(host, message)) events_.failed(host, "what came from there is no report");
}

void RemoteErrand::on_failed(int host, const std::string& reason) {
  waiting_.erase(host);
  events_.failed(host, reason);
}

void run_errand(const JobSpec& spec, const StartState& start, std::vector<std::string> role,
                RemoteErrand::Events events) {
  if (const std::string objection = objection_to_words(spec.ssh.arguments); !objection.empty())
    throw Error(ErrorCode::kInvalidArgument, objection);
  std::vector<std::string> new_keys;
  events.new_keys = [&new_keys](const std::vector<std::string>& keys) {
    new_keys.insert(new_keys.end(), keys.begin(), keys.end());
  };
  Loop loop;
  SignalReader child_ends({SIGCHLD}, 0);
  SignalReader interrupts({SIGINT, SIGTERM, SIGHUP, SIGQUIT}, start.ignored_signals);
  RemoteErrand errand(loop, spec, start, std::move(role), std::move(events));
  loop.watch(child_ends.fd(), EPOLLIN, [&](uint32_t) {
    child_ends.take();
    reap_until(
        [&](pid_t pid) {
          errand.kill_ssh(pid);
          return false;
        },
        [&](pid_t pid, int status) { errand.child_ended(pid, status); });
  });
  loop.watch(interrupts.fd(), EPOLLIN, [&](uint32_t) {
    const std::vector<int> signals = interrupts.take();
    if (signals.empty()) return;
    errand.end();  // what ssh started outlives it: it ignores what ends us
    die_by(signals[0]);
  });
  for (size_t host = 0; host < spec.hosts.size(); ++host)
    if (spec.hosts[host].remote)
      errand.start(int(host), spec.start_timeout, Deadline::in(spec.host_wait));
  for (errand.turn(Clock::now()); errand.waiting(); errand.turn(Clock::now()))
    loop.turn(errand.next_deadline());
  if (!new_keys.empty() && wants_warnings(spec))
    std::fprintf(stderr, "hvdrun: %s\n", new_keys_line(new_keys).c_str());
}

}  // namespace hvd
