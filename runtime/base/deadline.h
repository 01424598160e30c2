// A point in time by which something must have happened, or never.
#pragma once

#include <algorithm>
#include <chrono>

namespace hvd {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;

class Deadline {
 public:
  static Deadline never() { return Deadline(TimePoint::max()); }
  static Deadline in(Clock::duration duration) { return Deadline(Clock::now() + duration); }
  static Deadline at(TimePoint when) { return Deadline(when); }

  TimePoint when() const { return when_; }
  bool is_never() const { return when_ == TimePoint::max(); }
  bool passed(TimePoint now = Clock::now()) const { return !is_never() && now >= when_; }

  // For poll(): -1 when never, else milliseconds rounded up, at least 0, at most `most`.
  int poll_timeout_ms(int most = 3'600'000, TimePoint now = Clock::now()) const {
    if (is_never()) return -1;
    auto left = std::chrono::ceil<std::chrono::milliseconds>(when_ - now).count();
    return static_cast<int>(std::clamp<long long>(left, 0, most));
  }

 private:
  explicit Deadline(TimePoint when) : when_(when) {}
  TimePoint when_;
};

}  // namespace hvd
