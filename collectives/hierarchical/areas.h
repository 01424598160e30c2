// How long the areas of a rank are in which others of its host find its results and what it
// brings, and in which blocks they are used. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "collectives/hierarchical/host_map.h"

namespace hvd {

// A round takes in a block of each slice, and hands out one of each lane of the leader's: so many
// bytes they have at most, and so many rounds fit.
struct Area {
  size_t bytes = 0, block_bytes = 0;
  uint64_t slots = 0;
};

struct Areas {
  Area input, output;
};

// Of the ranks on `host`; bytes are the same on all. Without `staging` nothing is brought, but sums
// are still made block by block.
Areas areas_of(const HostMap& map, int host, bool staging);

}  // namespace hvd
