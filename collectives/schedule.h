// Which way a collective between hosts takes: a pure function of what is asked and how many take
// part, over a table that is compiled in, since the order of additions follows from it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hvd/types.h"

namespace hvd {

enum class AllreduceWay : uint8_t {
  kSwap,   // recursive doubling: neighbours in a cube swap whole tensors; fewest messages
  kHalve,  // recursive halving, then doubling: fewest bytes in few messages. The bits are kSwap's
  kRing,   // fewest bytes, in a stream; additions in ring order
};
AllreduceWay allreduce_way(size_t count, DataType type, int ranks);

// Where ranks share hosts: an allreduce rides along, summed by one rank per host; else every rank
// leads a slice.
inline constexpr size_t kHostRideBytesMost = 64 * 1024;
constexpr bool host_sums_ride(size_t bytes) { return bytes <= kHostRideBytesMost; }

// More bytes than anything brings along while ranks agree: what a rank that called something else
// sends is read, and dropped.
inline constexpr size_t kRidesMost = 4 << 20;

// Rides along while ranks agree; else it goes down a chain, in a stream.
bool broadcast_rides(size_t bytes);

}  // namespace hvd
