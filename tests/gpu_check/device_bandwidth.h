// How fast sums over all ranks are, measured as nccl-tests' all_reduce_perf does it.
#pragma once

#include <string>

#include "tests/gpu_check/device_rank.h"

namespace hvd {

// A line, "bytes: microseconds": the mean of so many sums in place, one behind the other, after a
// few that are not timed. All ranks; each its own.
std::string measure_bandwidth(DeviceRank& rank, size_t bytes, int sums);

}  // namespace hvd
