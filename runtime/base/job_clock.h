// The time that a job's time-outs are counted in: it stands while the job is suspended, and while a
// debugger holds one of its ranks.
//
// Pure. Launcher and agents have one each; ranks read their agent's, one word of the control block.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "runtime/base/deadline.h"

namespace hvd {

class JobClock {
 public:
  enum Reason : unsigned { kSuspended = 1, kDebugger = 2, kDebuggerElsewhere = 4 };

  // Each reason counts once; the clock goes while there is none.
  void stand(Reason why, TimePoint now) {
    if (reasons_ == 0) word_ = -count(time(now));
    reasons_ |= why;
  }
  void go_on(Reason why, TimePoint now) {
    if (reasons_ == 0) return;
    reasons_ &= ~unsigned{why};
    if (reasons_ == 0) word_ += count(now);
  }
  bool stands() const { return reasons_ != 0; }

  TimePoint time(TimePoint now) const { return time(word_, now); }
  // When it shows that time; nothing while it stands.
  std::optional<TimePoint> when(TimePoint time) const {
    if (stands()) return std::nullopt;
    return time + std::chrono::nanoseconds(word_);
  }

  // The whole state for readers, in one word that is stored at once: while the clock goes, for how
  // long it has stood, in nanoseconds; while it stands, what it shows, below 0.
  int64_t word() const { return word_; }
  static TimePoint time(int64_t word, TimePoint now) {
    if (word < 0) return TimePoint(std::chrono::nanoseconds(-word));
    return now - std::chrono::nanoseconds(word);
  }

 private:
  static int64_t count(TimePoint time) {
    return std::chrono::nanoseconds(time.time_since_epoch()).count();
  }

  unsigned reasons_ = 0;
  int64_t word_ = 0;
};

}  // namespace hvd
