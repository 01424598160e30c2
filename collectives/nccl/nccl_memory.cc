#include "collectives/nccl/nccl_memory.h"

#include <string>

namespace hvd {

NcclMemory::Piece::Piece(const CudaDevice& its_device, const NcclLibrary& its_nccl,
                         size_t its_bytes)
    : device(its_device), nccl(its_nccl), bytes(its_bytes) {
  const CudaDevice::Current current(device);
  void* memory = nullptr;
  const ncclResult_t result = nccl.ncclMemAlloc(&memory, bytes);
  base = static_cast<std::byte*>(memory);
  if (result == ncclSuccess) return;
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

NcclMemory::Piece::~Piece() {
  if (base == nullptr) return;
  try {
    const CudaDevice::Current current(device);
    nccl.ncclMemFree(base);
  } catch (const Error&) {
    // The device is lost, and all that was on it.
  }
}

std::shared_ptr<std::byte> NcclMemory::allocate(size_t bytes) {
  const auto piece = std::make_shared<Piece>(device_, nccl_, bytes);
  MutexLock lock(mutex_);
  std::erase_if(pieces_, [](const auto& one) { return one.second.expired(); });
  pieces_[piece->base] = piece;
  return {piece, piece->base};
}

std::shared_ptr<NcclMemory::Piece> NcclMemory::find(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  MutexLock lock(mutex_);
  auto next = pieces_.upper_bound(at);
  if (next == pieces_.begin()) return nullptr;
  std::shared_ptr<Piece> piece = (--next)->second.lock();
  return piece && at < piece->base + piece->bytes ? piece : nullptr;
}

void NcclRegistrations::use(ncclComm_t communicator, const NcclMemory& memory,
                            const void* address) {
  const std::shared_ptr<NcclMemory::Piece> piece = memory.find(address);
  if (!piece || handles_.contains(piece)) return;
  void* handle = nullptr;
  if (nccl_.ncclCommRegister(communicator, piece->base, piece->bytes, &handle) != ncclSuccess)
    handle = nullptr;
  handles_[piece] = handle;
}

void NcclRegistrations::drop_unused(ncclComm_t communicator) {
  std::erase_if(handles_, [&](const auto& one) {
    if (one.first.use_count() > 1) return false;
    if (one.second != nullptr) nccl_.ncclCommDeregister(communicator, one.second);
    return true;
  });
}

}  // namespace hvd
