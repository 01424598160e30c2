#include "collectives/schedule.h"

#include <algorithm>
#include <bit>

namespace hvd {
namespace {

constexpr size_t kKiB = 1024;

// The largest tensors that are swapped, and halved, by how many ranks there are at most. Measured
// over loopback, with 2, 4, 8 and 16 ranks (`scripts/benchmark links` shows 2 and 4).
struct Row {
  int ranks_most;
  size_t swap_bytes_most, halve_bytes_most;
};
constexpr Row kTable[] = {
    {2, 512 * kKiB, 0},
    {1 << 30, 16 * kKiB, 2048 * kKiB},
};
// Halves fit only where everybody is a corner of the cube. Elsewhere swaps take a third of a ring's
// time at 16 KiB, and less than it up to 128 KiB (measured with 3, 6 and 12 ranks over loopback); a
// slow network has to carry more of them.
constexpr size_t kUnevenSwapBytesMost = 64 * kKiB;
constexpr size_t kRideBytesMost = 16 * kKiB;
static_assert(std::ranges::all_of(kTable, [](const Row& row) {
  return std::max({row.swap_bytes_most, row.halve_bytes_most, kUnevenSwapBytesMost,
                   kRideBytesMost}) <= kRidesMost;
}));

}  // namespace

AllreduceWay allreduce_way(size_t count, DataType type, int ranks) {
  const size_t bytes = count * size_of(type);
  const Row* row = kTable;
  while (ranks > row->ranks_most) ++row;
  const bool corners = std::has_single_bit(static_cast<unsigned>(ranks));
  if (bytes <= (corners ? row->swap_bytes_most : kUnevenSwapBytesMost)) return AllreduceWay::kSwap;
  return corners && bytes <= row->halve_bytes_most ? AllreduceWay::kHalve : AllreduceWay::kRing;
}

bool broadcast_rides(size_t bytes) { return bytes <= kRideBytesMost; }

}  // namespace hvd
