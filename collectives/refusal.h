// Why an operation was refused: who called what, or who cannot do its part. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "collectives/communicator.h"

namespace hvd {

// What one rank has to say of a refused operation.
struct Side {
  int rank = 0;       // in the job
  uint64_t hash = 0;  // of what it called
  bool unable = false;
  std::string text;  // what it called, or why it is unable
};

inline constexpr size_t kSideTextBytes = 448;  // that a rank may say

// By `sides` in rank order: of ranks that called the same, the lowest that is unable is named, else
// one rank per different call, four at most.
void set_refusal(Operation& operation, std::span<const Side> sides);

}  // namespace hvd
