// What a user is told while hosts and their ranks start.
#include <unistd.h>

#include "cli/messages.h"
#include "cli/supervisor_impl.h"
#include "rendezvous/client.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kProgressNext{5000}, kProgressOfBatch{20'000}, kLookForSending{500};

AwaitedHost coming_back(const HostAgent& agent, TimePoint now, const std::string& advice) {
  if (agent.last_words().find(kOpenTheWay) != std::string::npos)
    return {.host = agent.host().name, .state = agent.last_words(), .told = true};
  return {agent.host().name, "its agent runs there and has not reached hvdrun",
          " for " + seconds_text(now - agent.began()) + advice + "; hvdrun listens at " +
              agent.way_back};
}

}  // namespace

// What a user who waits wants to know, from the second second on.
void Supervisor::say_progress(TimePoint now) {
  say_progress_at_.reset();
  const bool watched = isatty(2) != 0;
  // A batch job that waits for hosts is told once, and now and then how far files have come.
  const bool sends = remote_hosts_->sending(now);
  if (!watched && spec_.host_wait.count() == 0 && !sends) {
    if (remote_hosts_->waiting()) say_progress_at_ = now + kLookForSending;
    return;
  }
  const std::vector<std::string> lines = awaited_lines(late_hosts(now, ""));
  for (const std::string& line : lines) say("waiting for " + line);
  if (lines.empty()) return;
  if (watched)
    say_progress_at_ = now + kProgressNext;
  else if (sends)
    say_progress_at_ = now + kProgressOfBatch;
}

// What is known no more once the job ends: the step that each host is at which is not there. Of a
// time-out of the start that is said of agents alone: others have their own reasons.
void Supervisor::note_who_is_late(EndCause cause) {
  if (!remote_hosts_ || !places_.empty()) return;
  const bool by_itself = cause == EndCause::kStartTimeout;
  const bool asked_for = cause == EndCause::kTimeLimit || cause == EndCause::kInterrupted ||
                         cause == EndCause::kTerminated || cause == EndCause::kHangup ||
                         cause == EndCause::kQuit;
  if (!by_itself && !asked_for) return;
  const std::vector<AwaitedHost> hosts =
      late_hosts(Clock::now(), by_itself ? std::string("; ") + kOpenTheWay : "");
  for (const AwaitedHost& one : hosts) record_.note_not_started(one.host, one.state + one.details);
  for (const std::string& line : awaited_lines(hosts))
    say((by_itself ? "" : "was still waiting for ") + line);
}

// Hosts that start, agents that have not reached hvdrun, and those whose network is not proven.
std::vector<AwaitedHost> Supervisor::late_hosts(TimePoint now, const std::string& advice) const {
  std::vector<AwaitedHost> hosts = remote_hosts_->progress(now);
  std::set<int> away;
  for (const auto& agent : agents_) {
    if (!agent->remote() || agent->attached()) continue;
    hosts.push_back(coming_back(*agent, now, advice));
    away.insert(agent->number());
  }
  for (AwaitedHost& one : network_.progress(now, away)) hosts.push_back(std::move(one));
  return hosts;
}

// Said when every host has started some: who would use all CPUs in every rank gets a share.
void Supervisor::say_threads(const HostAgent& agent, int threads_each) {
  const bool is_first = threads_.emplace(agent.number(), threads_each).second;
  if (!is_first || threads_.size() < places_.size() || spec_.size == 1 || !wants_warnings(spec_))
    return;
  const bool here = places_.size() == 1 && !agent.remote();
  if (const std::string note = threads_note(spec_, threads_, here); !note.empty()) say(note);
}

// Once for each limit: one host's is as good as another's to learn of it.
void Supervisor::say_limits(const HostAgent& agent, const proto::Started& started) {
  for (const proto::ResourceLimit& one : started.lowered()) {
    const std::string note = limit_note(agent.host().name, one, start_);
    if (!note.empty() && wants_warnings(spec_) && limits_said_.insert(one.resource()).second)
      say(note);
  }
}

}  // namespace hvd
