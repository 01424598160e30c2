// Opens the plug-in for GPUs, when a tensor on one is to be sent.
#pragma once

#include <memory>
#include <string>

#include "collectives/device_backend.h"

namespace hvd {

// This process's device: the first call chooses it, and opens the plug-in that lies beside libhvd.
// Any thread. Throws kUnavailable, saying what is missing; kUnsupported when another device was
// chosen before. It lives as long as the process.
DeviceBackend& open_device(const DeviceOptions& options);

// NCCL's version that this build's plug-in was compiled for, as NCCL numbers them; 0: there is
// none, or one of another build.
int device_plug_in_version() noexcept;

// Why CUDA cannot be used here, by its own words, with that library (empty: the driver's); empty:
// it can, or there is no plug-in to ask it.
std::string why_no_cuda(const std::string& library);

}  // namespace hvd
