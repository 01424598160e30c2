// By how long its rounds have not moved.
#include "runtime/engine/leader_pulse.h"

#include <algorithm>

namespace hvd {
namespace {

using namespace std::chrono_literals;

// One that sleeps serves its host once a second at least.
constexpr Clock::duration kStandsStill = 2s;
// Of the time between two looks: for longer this process itself was stopped.
constexpr Clock::duration kBetweenLooks = 900ms;

}  // namespace

void LeaderPulse::look(uint64_t looks, uint64_t rounds, TimePoint now) {
  const bool moved = rounds != rounds_ || last_look_ == TimePoint{};
  still_ = moved ? Clock::duration::zero() : still_ + std::min(now - last_look_, kBetweenLooks);
  looks_ = looks;
  rounds_ = rounds;
  last_look_ = now;
}

bool LeaderPulse::stands_still() const { return still_ >= kStandsStill; }

// A look may have been under way when it was asked: the one behind it has passed it on.
std::vector<int> LeaderPulse::who_did_not_say(int leader, uint64_t asked_at_look,
                                              std::vector<int> seen) const {
  if (stands_still()) return {leader};
  if (looks_ <= asked_at_look + 1) return {};
  return rank_0_or(std::move(seen));
}

std::vector<int> rank_0_or(std::vector<int> seen) {
  return std::ranges::find(seen, 0) != seen.end() ? std::vector<int>{0} : seen;
}

}  // namespace hvd
