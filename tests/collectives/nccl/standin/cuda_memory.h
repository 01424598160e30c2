// Device memory: bytes that only the device's own work may touch.
#pragma once

#include <cstddef>

#include "tests/collectives/nccl/standin/cuda_device.h"

namespace hvd {

// Where `bytes` from there on lie, with the device whose they are; null where they are not within
// one allocation.
struct DeviceBytes {
  std::byte* host = nullptr;
  CUcontext context = nullptr;
};
HVD_STANDIN_API DeviceBytes find_device_bytes(const void* pointer, size_t bytes);

// Work that will touch the allocation is under way, from the first call to the second.
HVD_STANDIN_API void hold_device_bytes(const void* pointer);
HVD_STANDIN_API void let_go_of_device_bytes(const void* pointer);
HVD_STANDIN_API bool device_bytes_held(const void* pointer);
// Frees them at once, whatever the device does.
HVD_STANDIN_API CUresult free_device_bytes(CUdeviceptr pointer);

}  // namespace hvd
