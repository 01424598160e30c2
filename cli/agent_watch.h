// Whether an agent and its keeper still answer, and what is due when they do not.
//
// Pure. An agent says something at least once a second. Of the time between two looks at most a
// tick counts: what hvdrun itself was stopped or held for must not cost the job its agent.
// Who waits for the keeper has a deadline too, though it is a watchdog itself.
#pragma once

#include <chrono>
#include <optional>

#include "runtime/base/deadline.h"

namespace hvd {

class AgentWatch {
 public:
  using Duration = std::chrono::milliseconds;
  enum class Due {
    kNothing,
    kSaySilent,   // it has not answered for kSilence
    kCloseLease,  // nor for as long as it may be silent: its right to run ends
    kKillKeeper,  // the keeper did not end in time
    kGiveUp,      // nor of kKills: the kernel, or who traces it, holds it
  };
  static constexpr Duration kTick{1000};
  static constexpr Duration kSilence{3000};
  // A host elsewhere that says nothing for so long is dead to the job. Its last word may be a
  // second older than a cut, and the next comes up to a second after it (cut_link.h): a cut of 4 s
  // that heals is survived. Before Linux 6.15 TCP's pauses double, and it is one of 3 s.
  static constexpr Duration kHostSilence{6000};
  // With the keeper, from the agent's last word or the end of its lease on.
  static constexpr Duration kPatience{3000};
  static constexpr int kKills = 3;  // before it is given up

  // At least two beats of the agent's, however short `agent_timeout` is.
  AgentWatch(Duration agent_timeout, TimePoint now);

  void heard(TimePoint now);
  // At kCloseLease, with whether a debugger holds the agent: true while one does, and once more
  // after it let go, since the agent has to come to a word first.
  bool excuse(bool held);
  // The job is ending: from then on, so long a silence ends the lease. A second call only ever
  // makes it come sooner.
  void hurry(TimePoint from, Duration silence);
  void expect_end(TimePoint now);  // it said its last word, or its lease was closed
  // Who is expected to end still does what it is there for: from now on it has so long.
  void renew(TimePoint now, Duration patience);
  void keeper_gone() { keeper_gone_ = true; }

  Due tick(TimePoint now);  // at deadline(), or more often
  TimePoint deadline() const;
  Duration silence() const { return std::chrono::duration_cast<Duration>(silence_); }

 private:
  Clock::duration silence_max_;
  Clock::duration hurried_silence_max_{};
  std::optional<TimePoint> hurry_from_;
  TimePoint looked_;
  Clock::duration silence_{};
  bool said_ = false;
  bool was_held_ = false;
  std::optional<Clock::duration> patience_;  // what is left of it
  int kills_ = 0;
  bool keeper_gone_ = false;
};

}  // namespace hvd
