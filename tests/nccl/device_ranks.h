// Ranks as threads, each with a device of the stand-in's.
#pragma once

#include <string>

#include "collectives/nccl/cuda_device.h"
#include "collectives/nccl/nccl_library.h"
#include "collectives/nccl/nccl_memory.h"
#include "tests/support/ranks.h"

namespace hvd {

// The stand-ins, loaded as the product loads the real ones.
const CudaDriver& standin_driver();
const NcclLibrary& standin_nccl();
struct StandinDevice {
  explicit StandinDevice(int ordinal);
  CudaDevice device;
  NcclMemory memory;
};
// Rank k's of this process; lives as long as it.
StandinDevice& standin_device(int rank);

// NCCL over the stand-ins with host tensors. Of several communicators of a rank each has another
// `number`: that of the segment its words lie in.
CommunicatorFactory staged_nccl_factory(uint32_t number = 0);

}  // namespace hvd
