// Device memory that NCCL moves without a copy of its own, where the machine allows that.
//
// Such memory is registered with each communicator that uses it, and may be freed only when it is
// registered nowhere any more: who has registered a piece holds it.
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "collectives/nccl/cuda_device.h"
#include "collectives/nccl/nccl_library.h"
#include "runtime/base/mutex.h"

namespace hvd {

class NcclMemory {
 public:
  struct Piece {
    Piece(const CudaDevice& its_device, const NcclLibrary& its_nccl, size_t its_bytes);
    ~Piece();
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;

    const CudaDevice& device;
    const NcclLibrary& nccl;
    const size_t bytes;
    std::byte* base = nullptr;
  };

  // Both outlive it and all its pieces.
  NcclMemory(const CudaDevice& device, const NcclLibrary& nccl) : device_(device), nccl_(nccl) {}

  // Any thread. Throws kUnavailable, with both figures, when the device has no room.
  std::shared_ptr<std::byte> allocate(size_t bytes) EXCLUDES(mutex_);
  // The piece that this address is in, if it is in one.
  std::shared_ptr<Piece> find(const void* address) const EXCLUDES(mutex_);

 private:
  const CudaDevice& device_;
  const NcclLibrary& nccl_;
  mutable Mutex mutex_;
  std::map<const std::byte*, std::weak_ptr<Piece>> pieces_ GUARDED_BY(mutex_);  // by their bases
};

// What one communicator has registered. The holder's.
class NcclRegistrations {
 public:
  explicit NcclRegistrations(const NcclLibrary& nccl) : nccl_(nccl) {}

  // Of the piece that `address` is in, once. A communicator that cannot use it goes on without.
  void use(ncclComm_t communicator, const NcclMemory& memory, const void* address);
  // What nobody else holds any more.
  void drop_unused(ncclComm_t communicator);
  // The communicator is gone, and its registrations with it.
  void forget() { handles_.clear(); }

 private:
  const NcclLibrary& nccl_;
  std::map<std::shared_ptr<NcclMemory::Piece>, void*> handles_;
};

}  // namespace hvd
