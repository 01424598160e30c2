// All processes below an agent, whoever started them: signalled, suspended, reaped and ended.
//
// Lives on the agent's loop. A signal for a rank goes to all below it too: what a wrapper started
// would not see it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/agent/descendants.h"
#include "cli/stop_plan.h"
#include "runtime/base/deadline.h"

namespace hvd {

class JobProcesses {
 public:
  struct Callbacks {
    std::function<bool(pid_t)> is_worker;  // running: reaped by its owner, in the order of deaths
    std::function<void(pid_t, int status)> reaped;  // any child
    // Is about to be, before any that the same walk finds is.
    std::function<void(pid_t, int signal)> signalled;
    std::function<void()> before_leftovers;  // are signalled: those of ranks that are over
  };
  explicit JobProcesses(Callbacks callbacks) : callbacks_(std::move(callbacks)) {}

  void note_started() { nothing_left_ = false; }
  void reap_orphans();  // on SIGCHLD; what is_worker() claims is left to its owner
  bool orphans_due() const { return orphans_due_; }
  bool nothing_left() const { return nothing_left_; }  // waitid said ECHILD: the proof

  // A second plan only ever makes the end come sooner.
  void begin_end(StopPlan plan, TimePoint now);
  bool ending() const { return !plan_.empty(); }
  void hurry(TimePoint now);          // all ranks are gone: see stop_plan.h
  void advance(TimePoint now);        // sends what is due
  bool gave_up(TimePoint now) const;  // KILL went out long ago: who is there is not waited for
  std::optional<TimePoint> next_deadline(TimePoint now) const;
  std::vector<Descendant> all();  // that are seen now, also dead ones

  void suspend();  // stops all, and returns once /proc shows them stopped or after 500 ms
  void resume();   // continues those that suspend() stopped
  bool suspended() const { return suspended_; }

 private:
  void send(const StopStep& step);
  void kill_all();

  const Callbacks callbacks_;
  SpareDescriptors spare_;
  bool nothing_left_ = false, orphans_due_ = false, suspended_ = false;
  std::set<pid_t> stopped_by_us_;
  StopPlan plan_;
  size_t plan_done_ = 0;
  TimePoint end_began_{};
  std::optional<TimePoint> killed_all_;  // the first time; who is there since then is stuck
};

// What the user can do about a process that KILL did not end; `may_signal`: whether it can be sent.
std::string why_not_ended(const Descendant& one, bool may_signal);

}  // namespace hvd
