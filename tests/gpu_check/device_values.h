// Whether collectives on GPUs give what the CPU computes.
#pragma once

#include "tests/gpu_check/device_rank.h"

namespace hvd {

// All reductions of all types that GPUs have, broadcasts from every root, allgathers, and casts
// from every floating type to every one. Returns how many collectives there were; throws kInternal,
// with the element, at the first wrong value.
int check_values(DeviceRank& rank);

}  // namespace hvd
