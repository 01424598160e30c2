// Whether an agent and its keeper still answer, and what is due when they do not.
//
// Pure. An agent says something at least once a second. Time is counted in ticks that hvdrun was
// awake for, not by the clock: who holds or stops hvdrun must not cost the job its agent.
// Who waits for the keeper has a deadline too, though it is a watchdog itself.
#pragma once

#include <chrono>
#include <optional>

#include "runtime/base/deadline.h"

namespace hvd {

class AgentWatch {
 public:
  enum class Due {
    kNothing,
    kSaySilent,   // it has not answered for kSilentTicks
    kCloseLease,  // nor for as long as it may be silent: its right to run ends
    kKillKeeper,  // the keeper did not end in time
  };
  static constexpr std::chrono::milliseconds kTick{1000};
  static constexpr int kSilentTicks = 3;
  // From the agent's last word, or the end of its lease, to the keeper's end.
  static constexpr int kKeeperTicks = 3;

  AgentWatch(std::chrono::milliseconds agent_timeout, TimePoint now);

  void heard() { silent_ticks_ = 0, heard_ = true, was_held_ = false; }
  // At kCloseLease, with whether a debugger holds the agent: true while one does, and once more
  // after it let go, since the agent has to come to a word first.
  bool excuse(bool held);
  // The job is ending: from then on, so many silent ticks end the lease. A second call only ever
  // makes it come sooner.
  void hurry(TimePoint from, int silent_ticks);
  void expect_end(TimePoint now);  // it said its last word, or its lease was closed
  void keeper_gone() { keeper_gone_ = true; }

  Due tick(TimePoint now);  // at deadline()
  TimePoint deadline() const;
  int silent_ticks() const { return silent_ticks_; }

 private:
  int ticks_max_;
  int hurried_ticks_max_ = 0;
  std::optional<TimePoint> hurry_from_;
  int silent_ticks_ = 0;  // whole ones
  bool heard_ = false;    // since the last tick
  bool was_held_ = false;
  TimePoint next_tick_;
  int ticks_to_end_ = 0;  // 0: it is not expected
  bool keeper_gone_ = false;
};

}  // namespace hvd
