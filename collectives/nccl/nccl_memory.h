// Device memory of the kind that NCCL can move without a copy of its own, where the machine allows
// that.
//
// It is not registered with communicators yet: in one operation all ranks have to pass registered
// memory, and the same piece of it, or none (NCCL user guide, "User Buffer Registration"), and
// ranks choose between a bucket's home and spare each for itself.
#pragma once

#include <cstddef>
#include <memory>

#include "collectives/nccl/cuda_device.h"
#include "collectives/nccl/nccl_library.h"

namespace hvd {

// Any thread. Both outlive it. Throws kUnavailable, with both figures, when the device has no room.
std::shared_ptr<std::byte> allocate_for_nccl(const CudaDevice& device, const NcclLibrary& nccl,
                                             size_t bytes);

}  // namespace hvd
