#include "cli/reader_watch.h"

#include <algorithm>
#include <utility>

namespace hvd {
namespace {

constexpr Clock::duration kTickMax = std::chrono::seconds(1);
constexpr int kLooks = 4;  // at the least, before a reader is judged

}  // namespace

void ReaderWatch::limit(Duration patience, bool slow_too, TimePoint now) {
  if (!patience_) looked_ = now;
  patience_ = std::min<Clock::duration>(patience_.value_or(patience), patience);
  if (slow_too) for_slow_ = std::min<Clock::duration>(for_slow_.value_or(patience), patience);
}

Clock::duration ReaderWatch::tick() const { return std::min(kTickMax, *patience_ / kLooks); }

ReaderWatch::Due ReaderWatch::look(TimePoint now, bool takes, bool ranks_ended) {
  if (!patience_ || given_up_) return Due::kNothing;
  const Clock::duration step = std::min(now - std::exchange(looked_, now), tick());
  still_ = takes ? Clock::duration{} : still_ + step;
  if (still_ >= *patience_) {
    dropped_ = given_up_ = true;
    return Due::kGiveUp;
  }
  if (dropped_ || !for_slow_ || !ranks_ended) return Due::kNothing;
  *for_slow_ -= step;
  if (*for_slow_ > Clock::duration::zero()) return Due::kNothing;
  dropped_ = true;
  return Due::kDrop;
}

std::optional<TimePoint> ReaderWatch::deadline() const {
  if (!patience_ || given_up_) return std::nullopt;
  return looked_ + tick();
}

}  // namespace hvd
