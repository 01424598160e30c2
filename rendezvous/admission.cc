#include "rendezvous/admission.h"

#include <algorithm>

namespace hvd {

TimePoint Admission::accepts_at() const {
  if (waiting_.size() < limits_.all) return {};
  return waiting_.begin()->second.since + limits_.at_least;
}

std::optional<Admission::Admitted> Admission::admit(const std::string& host, TimePoint now) {
  const auto from_there = [&](const auto& one) { return one.second.host == host; };
  const auto count = std::count_if(waiting_.begin(), waiting_.end(), from_there);
  auto oldest = waiting_.end();
  if (size_t(count) >= limits_.per_address)
    oldest = std::find_if(waiting_.begin(), waiting_.end(), from_there);
  else if (waiting_.size() >= limits_.all)
    oldest = waiting_.begin();
  std::optional<Ticket> displaced;
  if (oldest != waiting_.end()) {
    if (now < oldest->second.since + limits_.at_least) return {};
    displaced = oldest->first;
    waiting_.erase(oldest);
  }
  waiting_[++last_] = {host, now};
  return Admitted{last_, displaced};
}

std::vector<Admission::Ticket> Admission::take_late(TimePoint now) {
  std::vector<Ticket> late;
  while (!waiting_.empty() && waiting_.begin()->second.since + limits_.patience <= now) {
    late.push_back(waiting_.begin()->first);
    waiting_.erase(waiting_.begin());
  }
  return late;
}

std::optional<TimePoint> Admission::next_deadline() const {
  if (waiting_.empty()) return {};
  return waiting_.begin()->second.since + limits_.patience;
}

}  // namespace hvd
