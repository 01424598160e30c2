// An agent's clock -> hvdrun's, as well as messages tell.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include "runtime/base/deadline.h"

namespace hvd {

// Pure, and of what any agent says: a time that no clock shows which began with its host is taken
// for the nearest that one does.
class AgentClock {
 public:
  // It was `its_ns` there when a message was sent that came `now`: the quickest so far counts.
  void note(int64_t its_ns, TimePoint now) {
    const Clock::duration behind = now.time_since_epoch() - shown(its_ns);
    behind_ = std::min(behind_.value_or(behind), behind);
  }
  TimePoint ours(int64_t its_ns) const {
    return TimePoint(shown(its_ns) + behind_.value_or(Clock::duration{}));
  }

 private:
  static std::chrono::nanoseconds shown(int64_t its_ns) {
    constexpr std::chrono::nanoseconds kMost = std::chrono::hours(24 * 365 * 30);
    return std::clamp(std::chrono::nanoseconds(its_ns), std::chrono::nanoseconds(0), kMost);
  }

  std::optional<Clock::duration> behind_;  // ours minus its
};

}  // namespace hvd
