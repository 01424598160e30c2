// How long a reader of the output is waited for once the job's end is bounded.
//
// Pure. Of the time between two looks at most a tick counts: what hvdrun itself was stopped for
// costs no reader anything.
#pragma once

#include <chrono>
#include <optional>

#include "runtime/base/deadline.h"

namespace hvd {

class ReaderWatch {
 public:
  using Duration = std::chrono::milliseconds;
  enum class Due {
    kNothing,
    kDrop,    // it had its time for the ranks' output: what of it waits is dropped
    kGiveUp,  // it takes nothing any more
  };

  // From now on a reader that takes nothing for `patience` is given up; with `slow_too` one that
  // goes on reading has so long for the ranks' output, from the ends of the ranks on. Further calls
  // only ever make it come sooner.
  void limit(Duration patience, bool slow_too, TimePoint now);
  // `takes`: it has taken something since the last look, or there is nothing to take.
  Due look(TimePoint now, bool takes, bool ranks_ended);
  std::optional<TimePoint> deadline() const;  // when to look

  bool limited() const { return patience_.has_value(); }
  bool dropped() const { return dropped_; }  // also when it was given up

 private:
  Clock::duration tick() const;

  std::optional<Clock::duration> patience_;
  std::optional<Clock::duration> for_slow_;  // what is left
  Clock::duration still_{};
  TimePoint looked_{};
  bool dropped_ = false, given_up_ = false;
};

}  // namespace hvd
