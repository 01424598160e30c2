#include "collectives/tcp/cube.h"

#include <algorithm>
#include <bit>

#include "collectives/tcp/frame.h"

namespace hvd {

int cube_corners(int ranks) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks)));
}

int cube_swaps(int ranks) { return std::countr_zero(static_cast<unsigned>(cube_corners(ranks))); }

std::vector<CubeStep> cube_steps(int rank, int ranks) {
  const int corners = cube_corners(ranks), swaps = cube_swaps(ranks);
  if (rank >= corners) {
    const int stand_in = rank - corners;
    return {{.peer = stand_in, .sends = true, .part = kEnterPart},
            {.peer = stand_in, .receives = true, .part = kResultPart}};
  }
  const bool represents = rank + corners < ranks;
  std::vector<CubeStep> steps;
  if (represents) steps.push_back({.peer = rank + corners, .receives = true, .part = kEnterPart});
  for (int i = 0; i < swaps; ++i)
    steps.push_back({.peer = rank ^ (1 << i),
                     .sends = true,
                     .receives = true,
                     .part = kSwapPart + static_cast<unsigned>(i),
                     .last_swap = i + 1 == swaps});
  if (represents) steps.push_back({.peer = rank + corners, .sends = true, .part = kResultPart});
  return steps;
}

std::vector<int> subcube(int rank, int ranks, int swaps) {
  const int corners = cube_corners(ranks), corner = rank % corners, mask = ~((1 << swaps) - 1);
  std::vector<int> members;
  for (int k = 0; k < ranks; ++k)
    if (((k % corners) & mask) == (corner & mask)) members.push_back(k);
  return members;
}

Slice kept_after(int rank, int swaps, size_t count, DataType type) {
  const size_t line = 64 / size_of(type);
  Slice kept{0, count};
  for (int i = 0; i < swaps; ++i) {
    const size_t half = std::min(kept.size(), (kept.size() / 2 + line - 1) / line * line);
    if ((rank >> i & 1) == 0)
      kept.end = kept.begin + half;
    else
      kept.begin += half;
  }
  return kept;
}

}  // namespace hvd
