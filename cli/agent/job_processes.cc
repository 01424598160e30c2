#include "cli/agent/job_processes.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

namespace hvd {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kKillRound{300};  // one go at killing, between two turns of the loop
constexpr milliseconds kKillPause{50};
constexpr milliseconds kKillLimit{20'000};  // then what is left is reported, not waited for
constexpr milliseconds kStopLimit{500};     // for processes in an uninterruptible wait
constexpr int kWalksMax = 10;               // of one signal over all descendants,
constexpr milliseconds kSignalLimit{300};   // of which none but the second begins later

}  // namespace

void JobProcesses::reap_orphans() {
  const Reaped what = reap_until(callbacks_.is_worker, callbacks_.reaped);
  orphans_due_ = what == Reaped::kStopped;
  nothing_left_ = what == Reaped::kNothingLeft;
}

void JobProcesses::begin_end(StopPlan plan, TimePoint now) {
  if (ending() && end_began_ + plan_.back().after <= now + plan.back().after) return;
  plan_ = std::move(plan);
  plan_done_ = 0;
  end_began_ = now;
  if (suspended_) resume();
  advance(now);
}

void JobProcesses::hurry(TimePoint now) {
  if (plan_done_ >= plan_.size() || plan_[plan_done_].signal == SIGKILL) return;
  hvd::hurry(plan_, std::chrono::duration_cast<milliseconds>(now - end_began_));
  advance(now);
}

void JobProcesses::advance(TimePoint now) {
  for (; plan_done_ < plan_.size() && end_began_ + plan_[plan_done_].after <= now; ++plan_done_)
    if (plan_[plan_done_].signal != SIGKILL && !nothing_left_) send(plan_[plan_done_]);
  if (!ending() || plan_done_ < plan_.size()) return;
  const TimePoint before = Clock::now();
  if (!nothing_left_) kill_all();
  if (!killed_all_) killed_all_ = now + (Clock::now() - before);
}

bool JobProcesses::gave_up(TimePoint now) const {
  return killed_all_ && now >= *killed_all_ + kKillLimit;
}

std::optional<TimePoint> JobProcesses::next_deadline(TimePoint now) const {
  if (!ending() || nothing_left_) return std::nullopt;
  return plan_done_ < plan_.size() ? end_began_ + plan_[plan_done_].after : now + kKillPause;
}

std::vector<Descendant> JobProcesses::all() {
  const SpareDescriptors::Loan loan(spare_);
  return descendants(getpid());
}

void JobProcesses::kill_all() {
  callbacks_.before_leftovers();
  const SpareDescriptors::Loan loan(spare_);
  stop_descendants(Deadline::in(kKillRound));
  for (const Descendant& one : descendants(getpid()))
    if (one.alive) callbacks_.signalled(one.pid, SIGKILL);
  nothing_left_ = end_descendants(kKillRound, callbacks_.reaped) == 0;
}

// Children before parents, so that they are still found where the walk saw them; repeated for those
// that moved or are new, but not for long: a loop of forks that ignores the signal always has
// somebody new, and KILL must get its turn.
void JobProcesses::send(const StopStep& step) {
  if (step.whom != StopFor::kRanks) callbacks_.before_leftovers();
  const SpareDescriptors::Loan loan(spare_);
  // What an ended rank left hangs on the agent itself, which is a subreaper.
  const auto spared = [&](pid_t child) {
    return step.whom != StopFor::kAll &&
           callbacks_.is_worker(child) != (step.whom == StopFor::kRanks);
  };
  std::set<pid_t> noted, signalled, continued;
  const Deadline limit = Deadline::in(kSignalLimit);
  bool more = true;
  const auto once = [&](const Descendant& one, int signal, std::set<pid_t>& done) {
    if (done.contains(one.pid)) return;
    more = true;
    if (signal_descendant(one, signal)) done.insert(one.pid);
  };
  for (int walk = 0; more && walk < kWalksMax && (walk < 2 || !limit.passed()); ++walk) {
    more = false;
    const std::vector<Descendant> all = descendants(getpid(), spared);
    for (const Descendant& one : all)
      if (one.alive && noted.insert(one.pid).second) callbacks_.signalled(one.pid, step.signal);
    for (auto one = all.rbegin(); one != all.rend(); ++one) {
      if (!one->alive) continue;
      once(*one, step.signal, signalled);
      once(*one, SIGCONT, continued);
    }
  }
}

// Sent is not stopped: on a busy machine a process runs on for a while. Done is what /proc shows as
// stopped.
void JobProcesses::suspend() {
  if (suspended_ || ending()) return;
  suspended_ = true;
  const SpareDescriptors::Loan loan(spare_);
  const Deadline limit = Deadline::in(kStopLimit);
  for (bool more = true; more && !limit.passed(); poll(nullptr, 0, more ? 1 : 0)) {
    more = false;
    for (const Descendant& one : descendants(getpid())) {
      if (!one.alive || one.stopped()) continue;
      more = true;
      if (!stopped_by_us_.contains(one.pid) && signal_descendant(one, SIGSTOP))
        stopped_by_us_.insert(one.pid);
    }
  }
}

// Children before parents, which might end at once and leave them to others.
void JobProcesses::resume() {
  suspended_ = false;
  const SpareDescriptors::Loan loan(spare_);
  const std::vector<Descendant> all = descendants(getpid());
  for (auto one = all.rbegin(); one != all.rend(); ++one)
    if (stopped_by_us_.contains(one->pid)) signal_descendant(*one, SIGCONT);
  stopped_by_us_.clear();
}

std::string why_not_ended(const Descendant& one, bool may_signal) {
  const std::string folder = "/proc/" + std::to_string(one.pid);
  if (one.alive && !may_signal)
    return "it has become another user's (by sudo, for one), whose processes hvdrun may not "
           "signal; end it as that user or as root";
  if (one.state == '?')
    return "it does not die of SIGKILL, and hides its state; look as root, in " + folder +
           "/task/*/stack";
  if (!one.alive)
    return "it has ended, but the process that traces it holds it; end that one (TracerPid in " +
           folder + "/status)";
  const std::string where = "look there as root, in " + folder + "/task/*/stack";
  if (one.state == 'D')
    return "it is in an uninterruptible wait (state D), where SIGKILL cannot reach it; a file "
           "system, a disk or a device driver does not answer: " +
           where;
  return "it does not die of SIGKILL (state " + std::string(1, one.state) +
         "): for what its threads wait, " + where;
}

}  // namespace hvd
