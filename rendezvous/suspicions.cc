#include "rendezvous/suspicions.h"

#include <algorithm>
#include <utility>

namespace hvd {

void Suspicions::note(const std::string& host, const std::string& why, TimePoint now) {
  if (held_.size() == kHeldMost && !held_.contains(host)) return note_certain(host, why);
  ++held_.try_emplace(host, Held{now + patience_, {}}).first->second.times[why];
}

std::vector<Suspicions::Suspicion> Suspicions::take(TimePoint now) {
  std::vector<Suspicion> due = std::exchange(due_, {});
  for (const auto& [host, held] : held_)
    if (held.until <= now)
      for (const auto& [why, times] : held.times) due.push_back({host, why, times});
  std::erase_if(held_, [&](const auto& one) { return one.second.until <= now; });
  return due;
}

std::optional<TimePoint> Suspicions::next_deadline() const {
  if (!due_.empty()) return TimePoint();
  const auto first =
      std::ranges::min_element(held_, {}, [](const auto& one) { return one.second.until; });
  if (first == held_.end()) return {};
  return first->second.until;
}

}  // namespace hvd
