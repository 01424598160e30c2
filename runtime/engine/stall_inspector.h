// Says which ranks hold up which operations: what waits and the time go in, warnings come out.
//
// Pure: time is an argument. Like Horovod's: a report lists what has been waiting for longer than
// the warning time, at most once per warning time, by missing rank.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/engine/coordinator.h"

namespace hvd {

struct StallReport {
  std::string text;  // lines without a newline at the end
  bool shut_down = false;
  std::vector<int> missing{};  // on shut_down: whom others waited for that long
  std::string under_way{};     // the same, of what nobody is known to be missing in
};

class StallInspector {
 public:
  // `warning_after` 0: never a report. `shutdown_after` 0: never; below the warning time it is the
  // warning time, too (Horovod leaves such a shutdown time out, and says so).
  StallInspector(std::chrono::milliseconds warning_after, std::chrono::milliseconds shutdown_after);

  // `waiting` is everything that waits now, or did when it was last seen: it has not waited for
  // longer than until then. What is not in it any more is forgotten. Of what has nobody missing it
  // is not known who is.
  std::optional<StallReport> inspect(std::span<const WaitingName> waiting, TimePoint now);

 private:
  struct Stalled {
    const WaitingName* waiting;
    Clock::duration age;
  };
  std::string describe(std::span<const Stalled> stalled) const;
  std::string describe(std::map<int, std::vector<const Stalled*>> by_rank) const;

  const std::chrono::milliseconds warning_after_;
  const std::chrono::milliseconds shutdown_after_;
  std::map<std::pair<std::string, uint64_t>, TimePoint> since_;
  TimePoint last_report_{};
};

}  // namespace hvd
