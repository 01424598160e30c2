// For how long something has been waited for, by those who look at it again and again.
//
// Time in which this process was stopped, as by a suspended job, does not count: no step between
// two looks is taken for longer than that of a busy machine.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/base/deadline.h"

namespace hvd {

class WaitedFor {
 public:
  void begin(TimePoint now) {
    looked_at_ = now;
    waited_ = {};
  }
  // A look: for how long by now.
  Clock::duration look(TimePoint now) {
    waited_ += std::clamp<Clock::duration>(now - std::exchange(looked_at_, now), {}, kStepMost);
    return waited_;
  }

 private:
  static constexpr Clock::duration kStepMost = std::chrono::milliseconds(100);

  TimePoint looked_at_ = Clock::now();
  Clock::duration waited_{};
};

}  // namespace hvd
