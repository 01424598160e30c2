// Who meets whom so that everybody hears of everybody in few steps: a cube of ranks.
//
// The lower 2^k ranks, as many as there can be, are corners of a cube; in step i a corner swaps
// with the one whose number differs in bit i. A rank beyond them is represented by its stand-in, a
// corner: it enters its part there first and gets the result last. Pure.
#pragma once

#include <vector>

#include "collectives/reduce.h"
#include "hvd/types.h"

namespace hvd {

struct CubeStep {
  int peer = 0;
  bool sends = false, receives = false;
  unsigned part = 0;       // FramePart: what the message is
  bool last_swap = false;  // behind it a corner knows all

  friend bool operator==(const CubeStep&, const CubeStep&) = default;
};

std::vector<CubeStep> cube_steps(int rank, int ranks);

// Corners of the cube, and how many swaps it takes.
int cube_corners(int ranks);
int cube_swaps(int ranks);

// The ranks that `rank` has heard of before its `swaps`th swap, and they of it: its subcube, and
// those who are represented in it.
std::vector<int> subcube(int rank, int ranks, int swaps);

// Recursive halving: the elements that a corner still works on after `swaps` swaps, each of which
// gives half of them away. Borders are whole cache lines.
Slice kept_after(int rank, int swaps, size_t count, DataType type);

}  // namespace hvd
