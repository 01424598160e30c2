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
// Some of the current context's; they take `room` of the device's.
HVD_STANDIN_API CUresult take_device_bytes(CUdeviceptr* pointer, size_t bytes, size_t room,
                                           const char* call);
// Frees them at once, whatever the device does.
HVD_STANDIN_API CUresult free_device_bytes(CUdeviceptr pointer);
// All that nothing under way is to touch; hvd_standin_used() goes on counting it.
void forget_memory_of(CUcontext context);
// A call that frees, by `call`: a violation where the process ends, which frees all.
HVD_STANDIN_API bool frees_too_late(const char* call);

}  // namespace hvd
