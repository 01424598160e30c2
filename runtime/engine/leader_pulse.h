// The leader of a host as the host's other ranks see it, by its words: does it pass on what they
// ask, or stand still?
//
// Pure: time is an argument.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/deadline.h"

namespace hvd {

class LeaderPulse {
 public:
  // `looks` and `rounds` as LogWords says. At least once a second while this process runs: while it
  // was stopped itself its leader did not stand still.
  void look(uint64_t looks, uint64_t rounds, TimePoint now);

  uint64_t looks() const { return looks_; }
  bool stands_still() const;
  // Rank 0 was asked by way of `leader` when it had looked so often, and does not say who is
  // missing. Who is: the leader, if it stands still; nobody knows, if it works all the time and
  // never came to passing it on; else of those that are missing as far as is `seen` here rank 0,
  // which would have said so if it were others.
  std::vector<int> who_did_not_say(int leader, uint64_t asked_at_look, std::vector<int> seen) const;

 private:
  uint64_t looks_ = 0, rounds_ = 0;
  Clock::duration still_{};  // for so long `rounds` has not moved
  TimePoint last_look_{};
};

// The last of these for whoever heard rank 0 itself.
std::vector<int> rank_0_or(std::vector<int> seen);

}  // namespace hvd
