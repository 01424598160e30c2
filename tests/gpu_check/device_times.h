// What a bucket and a launch cost the host: ratios of one run.
#pragma once

#include <string>

#include "tests/gpu_check/device_rank.h"

namespace hvd {

// Medians, and of a bucket the mean, too, a line for each, "name: value": all in microseconds of
// the host. All ranks; each its own.
std::string measure_launches(DeviceRank& rank);

}  // namespace hvd
