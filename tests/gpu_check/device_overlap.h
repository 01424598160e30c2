// Whether a sum goes on beside compute that does not need it: times of one device's events.
#pragma once

#include <string>

#include "tests/gpu_check/device_rank.h"

namespace hvd {

// A line: when, from the beginning of a long piece of compute in a stream of its own, that ended,
// when a sum that was submitted meanwhile began and ended, and when the host had launched it. The
// compute is copies of `bytes` at a time. All ranks; each its own.
std::string measure_overlap(DeviceRank& rank, size_t bytes);

}  // namespace hvd
