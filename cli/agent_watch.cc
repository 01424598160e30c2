#include "cli/agent_watch.h"

#include <algorithm>
#include <utility>

namespace hvd {

AgentWatch::AgentWatch(Duration agent_timeout, TimePoint now)
    : silence_max_(std::max(2 * kTick, agent_timeout)), looked_(now) {}

void AgentWatch::heard(TimePoint now) {
  if (!patience_) looked_ = now;
  silence_ = {};
  said_ = was_held_ = false;
}

void AgentWatch::hurry(TimePoint from, Duration silence) {
  hurried_silence_max_ =
      hurry_from_ ? std::min<Clock::duration>(hurried_silence_max_, silence) : silence;
  hurry_from_ = hurry_from_ ? std::min(*hurry_from_, from) : from;
}

void AgentWatch::expect_end(TimePoint now) {
  if (patience_) return;
  patience_ = kPatience;
  looked_ = now;
}

void AgentWatch::renew(TimePoint now, Duration patience) {
  if (!patience_) return;
  patience_ = patience;
  looked_ = now;
}

bool AgentWatch::excuse(bool held) {
  const bool excused = std::exchange(was_held_, held) || held;
  if (excused) silence_ = {}, said_ = false;
  return excused;
}

AgentWatch::Due AgentWatch::tick(TimePoint now) {
  if (hurry_from_ && now >= *hurry_from_) {
    silence_max_ = std::min(silence_max_, hurried_silence_max_);
    hurry_from_.reset();
  }
  const Clock::duration step = std::min<Clock::duration>(now - std::exchange(looked_, now), kTick);
  if (keeper_gone_) return Due::kNothing;
  if (patience_) {
    *patience_ -= step;
    if (*patience_ > Clock::duration::zero()) return Due::kNothing;
    patience_ = kPatience;
    return kills_++ < kKills ? Due::kKillKeeper : Due::kGiveUp;
  }
  silence_ += step;
  if (silence_ >= silence_max_) return Due::kCloseLease;
  return silence_ >= kSilence && !std::exchange(said_, true) ? Due::kSaySilent : Due::kNothing;
}

TimePoint AgentWatch::deadline() const {
  Clock::duration next = kTick;
  const auto consider = [&](Clock::duration left) { next = std::min(next, left); };
  if (patience_) {
    consider(*patience_);
  } else {
    consider(silence_max_ - silence_);
    if (!said_) consider(kSilence - silence_);
  }
  if (next < Clock::duration::zero() || keeper_gone_) next = kTick;
  const TimePoint soonest = looked_ + next;
  return hurry_from_ ? std::min(soonest, *hurry_from_) : soonest;
}

}  // namespace hvd
