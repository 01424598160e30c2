// The calls of a communicator's ranks, and what comes of them once all have made the same.
//
// Pure: no I/O, clock or globals but the notes of calls that differ.
#pragma once

#include <array>
#include <deque>
#include <vector>

#include "tests/collectives/nccl/standin/nccl_wire.h"

namespace hvd {

// A rank's two connections: collectives on one, everything else on the other.
constexpr int kData = 0, kControl = 1;

struct Answer {
  int rank = 0, channel = 0;
  Frame frame;
};

class Rounds {
 public:
  explicit Rounds(int ranks);

  // A rank's next call. What follows from it, for whom.
  std::vector<Answer> take(int rank, int channel, Frame frame);
  // From then on a rank that is gone is not missed.
  bool finalized() const { return finalized_; }

 private:
  using Round = std::vector<Frame>;  // by rank

  std::vector<Answer> answer(int channel, const Round& round);
  std::vector<Answer> answer_hello(const Round& round) const;
  std::vector<Answer> answer_split(const Round& round);
  std::vector<Answer> answer_window(const Round& round) const;

  std::vector<std::array<std::deque<Frame>, 2>> calls_;  // by rank and channel
  std::array<bool, 2> stuck_ = {};
  bool finalized_ = false;
};

}  // namespace hvd
