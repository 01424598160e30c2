#include "collectives/schedule.h"

#include <algorithm>
#include <bit>

namespace hvd {
namespace {

constexpr size_t kKiB = 1024;

// The largest tensors that are swapped, and halved, by how many ranks there are at most. Measured
// over loopback (`scripts/benchmark links`).
struct Row {
  int ranks_most;
  size_t swap_bytes_most, halve_bytes_most;
};
constexpr Row kTable[] = {
    {2, 512 * kKiB, 0},
    {4, 32 * kKiB, 512 * kKiB},
    {1 << 30, 16 * kKiB, 1024 * kKiB},
};
constexpr size_t kRideBytesMost = 16 * kKiB;
static_assert(std::ranges::all_of(kTable, [](const Row& row) {
  return std::max({row.swap_bytes_most, row.halve_bytes_most, kRideBytesMost}) <= kRidesMost;
}));

}  // namespace

AllreduceWay allreduce_way(size_t count, DataType type, int ranks) {
  const size_t bytes = count * size_of(type);
  const Row* row = kTable;
  while (ranks > row->ranks_most) ++row;
  if (bytes <= row->swap_bytes_most) return AllreduceWay::kSwap;
  // Halves fit only where everybody is a corner of the cube.
  const bool corners = std::has_single_bit(static_cast<unsigned>(ranks));
  return corners && bytes <= row->halve_bytes_most ? AllreduceWay::kHalve : AllreduceWay::kRing;
}

bool broadcast_rides(size_t bytes) { return bytes <= kRideBytesMost; }

}  // namespace hvd
