#include "collectives/nccl/nccl_memory.h"

#include <string>

namespace hvd {

std::shared_ptr<std::byte> allocate_for_nccl(const CudaDevice& device, const NcclLibrary& nccl,
                                             size_t bytes) {
  const CudaDevice::Current current(device);
  void* memory = nullptr;
  const ncclResult_t result = nccl.ncclMemAlloc(&memory, bytes);
  if (result == ncclSuccess)
    return {static_cast<std::byte*>(memory), [&device, &nccl](std::byte* base) {
              try {
                const CudaDevice::Current again(device);
                nccl.ncclMemFree(base);
              } catch (const Error&) {
                // The device is lost, and all that was on it.
              }
            }};
  size_t free = 0, total = 0;
  const bool known = device.driver().cuMemGetInfo(&free, &total) == CUDA_SUCCESS;
  throw Error(
      ErrorCode::kUnavailable,
      "GPU " + std::to_string(device.ordinal()) + " has no room for " + std::to_string(bytes) +
          " bytes more" +
          (known ? " (" + std::to_string(free) + " of " + std::to_string(total) + " are free)"
                 : std::string()) +
          ": " + nccl.text_of(result, nullptr));
}

}  // namespace hvd
