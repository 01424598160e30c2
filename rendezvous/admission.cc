#include "rendezvous/admission.h"

#include <algorithm>

namespace hvd {

std::optional<Admission::Ticket> Admission::admit(const std::string& host, TimePoint now) {
  const auto from_there = std::count_if(waiting_.begin(), waiting_.end(),
                                        [&](const auto& one) { return one.second.host == host; });
  if (full() || size_t(from_there) >= limits_.per_address) return {};
  waiting_[++last_] = {host, now + limits_.patience};
  return last_;
}

std::vector<Admission::Ticket> Admission::take_late(TimePoint now) {
  std::vector<Ticket> late;
  while (!waiting_.empty() && waiting_.begin()->second.until <= now) {
    late.push_back(waiting_.begin()->first);
    waiting_.erase(waiting_.begin());
  }
  return late;
}

std::optional<TimePoint> Admission::next_deadline() const {
  if (waiting_.empty()) return {};
  return waiting_.begin()->second.until;
}

}  // namespace hvd
