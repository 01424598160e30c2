#include "cli/agent_watch.h"

#include <algorithm>
#include <utility>

namespace hvd {

AgentWatch::AgentWatch(std::chrono::milliseconds agent_timeout, TimePoint now)
    : ticks_max_(std::max(1, int(agent_timeout / kTick))), next_tick_(now + kTick) {}

void AgentWatch::hurry(TimePoint from, int silent_ticks) {
  hurried_ticks_max_ = hurry_from_ ? std::min(hurried_ticks_max_, silent_ticks) : silent_ticks;
  hurry_from_ = hurry_from_ ? std::min(*hurry_from_, from) : from;
}

void AgentWatch::expect_end(TimePoint now) {
  if (ticks_to_end_ > 0) return;
  ticks_to_end_ = kKeeperTicks;
  next_tick_ = now + kTick;
}

bool AgentWatch::excuse(bool held) {
  const bool excused = std::exchange(was_held_, held) || held;
  if (excused) silent_ticks_ = 0;
  return excused;
}

AgentWatch::Due AgentWatch::tick(TimePoint now) {
  const bool hurry = hurry_from_ && now >= *hurry_from_;
  if (hurry) {
    ticks_max_ = std::min(ticks_max_, hurried_ticks_max_);
    hurry_from_.reset();
  }
  const bool ticks = now >= next_tick_;
  if (ticks) next_tick_ = now + kTick;
  if (keeper_gone_ || (!ticks && !hurry)) return Due::kNothing;
  if (ticks_to_end_ > 0) {
    ticks_to_end_ -= ticks;
    if (ticks_to_end_ > 0) return Due::kNothing;
    ticks_to_end_ = kKeeperTicks;
    return Due::kKillKeeper;
  }
  if (ticks && !std::exchange(heard_, false)) ++silent_ticks_;
  if (silent_ticks_ >= ticks_max_) return Due::kCloseLease;
  return ticks && silent_ticks_ == kSilentTicks ? Due::kSaySilent : Due::kNothing;
}

TimePoint AgentWatch::deadline() const {
  return hurry_from_ ? std::min(next_tick_, *hurry_from_) : next_tick_;
}

}  // namespace hvd
