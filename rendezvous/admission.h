// How many connections may knock at once before they have proven who they are, and for how long.
//
// Pure. Whoever accepts connections asks: a stranger costs little, and cannot keep others out by
// being silent: where all places are taken, the oldest of those who had some time for their proof
// gives its place to who comes next.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/deadline.h"

namespace hvd {

class Admission {
 public:
  struct Limits {
    size_t all = 64;
    size_t per_address = 8;
    Clock::duration patience = std::chrono::seconds(5);
    // Sooner none loses its place to another: a slow network's handshake has to fit in.
    Clock::duration at_least = std::chrono::seconds(1);
  };
  using Ticket = uint64_t;
  struct Admitted {
    Ticket ticket;
    std::optional<Ticket> displaced;  // gave its place; settled by that
  };

  Admission() = default;
  explicit Admission(const Limits& limits) : limits_(limits) {}
  const Limits& limits() const { return limits_; }

  // Accept nobody before: the others wait in the kernel, in the order in which they came.
  TimePoint accepts_at() const;
  // For a connection from `host`, an address without its port. Nothing: too many from there.
  std::optional<Admitted> admit(const std::string& host, TimePoint now);
  void settle(Ticket ticket) { waiting_.erase(ticket); }  // it has proven who it is, or is gone
  // Those that have been here for too long; they are settled by that.
  std::vector<Ticket> take_late(TimePoint now);
  std::optional<TimePoint> next_deadline() const;

 private:
  struct Waiting {
    std::string host;
    TimePoint since;
  };
  Limits limits_;
  Ticket last_ = 0;
  std::map<Ticket, Waiting> waiting_;  // in the order in which they came
};

}  // namespace hvd
