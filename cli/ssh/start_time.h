// How long a host has until its agent speaks.
//
// Pure. Time runs out only while nothing comes of a host, as with rsync's --timeout: not before its
// turn, nor while it takes what is sent to it.
#pragma once

#include <algorithm>
#include <optional>

#include "runtime/base/deadline.h"

namespace hvd {

class StartTime {
 public:
  // It has so much patience; one that cannot be reached is tried again until `there`.
  StartTime(Clock::duration patience, Deadline there) : patience_(patience), there_(there) {}

  bool begun() const { return !deadline_.is_never(); }
  void begin(TimePoint now) {  // its turn
    deadline_ = Deadline::at(std::max(now, there_.when()) + patience_);
  }
  bool may_wait(TimePoint now) const { return !there_.passed(now); }
  TimePoint waits_until() const { return there_.when(); }
  // An attempt that gives up by itself where it does not connect in so long, or never does: it is
  // taken for one that has connected, and is silent, once its patience is over as well.
  void connect_within(std::optional<Clock::duration> limit, TimePoint now) {
    silent_until_ = limit ? Deadline::at(now + *limit + patience_) : Deadline::never();
  }
  bool is_silent(TimePoint now) const { return silent_until_.passed(now); }
  // It need not be waited for any more.
  void reached(TimePoint now) {
    if (!silent_until_.is_never())
      deadline_ = Deadline::at(std::min(deadline_.when(), now + patience_));
    silent_until_ = Deadline::never();
  }
  // It took some of what is sent. When that was the last of it, some is on its way still, up to the
  // 2 MiB of ssh's window: on a slow line that takes longer than anybody's patience, but less than
  // all before it, which took `so_long`.
  void taken(bool is_last, Clock::duration so_long, TimePoint now) {
    const Clock::duration more = is_last ? std::max(patience_, so_long) : patience_;
    deadline_ = Deadline::at(std::max(deadline_.when(), now + more));
  }
  bool passed(TimePoint now) const { return deadline_.passed(now); }
  TimePoint next() const { return std::min(deadline_.when(), silent_until_.when()); }

  void excuse(Clock::duration time) {  // everything comes so much later
    for (Deadline* one : {&deadline_, &there_, &silent_until_})
      if (!one->is_never()) *one = Deadline::at(one->when() + time);
  }

 private:
  Clock::duration patience_;
  Deadline there_;
  Deadline deadline_ = Deadline::never(), silent_until_ = Deadline::never();
};

}  // namespace hvd
