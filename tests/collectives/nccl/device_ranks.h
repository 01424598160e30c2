// Ranks as threads, each with a device of the stand-in's.
#pragma once

#include <memory>

#include "collectives/device_backend.h"
#include "collectives/nccl/cuda_device.h"
#include "collectives/nccl/nccl_library.h"
#include "collectives/nccl/nccl_limits.h"
#include "tests/support/ranks.h"

namespace hvd {

// The stand-ins, loaded as the product loads the real ones.
const CudaDriver& standin_driver();
const NcclLibrary& standin_nccl();
// Rank k's of this process; lives as long as it.
CudaDevice& standin_device(int rank);

// What the product would open for rank k; the same.
DeviceBackend& standin_backend(int rank);
// One of the test's own. It outlives what uses it.
std::unique_ptr<DeviceBackend> make_standin_backend(int rank, const NcclLimits& limits = {});

// Bytes of the rank's device that are in use, once what was let go of before is back there: another
// thread frees it.
size_t settled_use(int rank);

// NCCL over the stand-ins with host tensors. Of several communicators of a rank each has another
// `number`: that of the segment its words lie in.
CommunicatorFactory staged_nccl_factory(uint32_t number = 0);

}  // namespace hvd
