#include "cli/agent_watch.h"

#include <algorithm>

namespace hvd {

AgentWatch::AgentWatch(std::chrono::milliseconds agent_timeout, TimePoint now)
    : ticks_max_(std::max(1, int(agent_timeout / kTick))), next_tick_(now + kTick) {}

void AgentWatch::expect_end(TimePoint now) {
  if (!end_by_) end_by_ = now + kKeeperPatience;
}

AgentWatch::Due AgentWatch::tick(TimePoint now) {
  if (end_by_ && now >= *end_by_ && !keeper_gone_) {
    end_by_ = now + kKeeperPatience;
    return Due::kKillKeeper;
  }
  if (now < next_tick_) return Due::kNothing;
  next_tick_ = now + kTick;
  if (keeper_gone_ || end_by_) return Due::kNothing;
  ++silent_ticks_;
  if (silent_ticks_ >= ticks_max_) return Due::kCloseLease;
  return silent_ticks_ == kSilentTicks ? Due::kSaySilent : Due::kNothing;
}

TimePoint AgentWatch::deadline() const {
  return end_by_ && !keeper_gone_ ? std::min(next_tick_, *end_by_) : next_tick_;
}

}  // namespace hvd
