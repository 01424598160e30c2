#include "collectives/nccl/nccl_windows.h"

#include <algorithm>
#include <iterator>

#include "runtime/base/env.h"

namespace hvd {

ncclResult_t NcclWindows::add(ncclComm_t communicator, const Buffer& memory) {
  Registered& one = all_.emplace_back();
  one.memory = memory.data;
  one.bytes = memory.bytes();
  if (nccl_.ncclCommWindowRegister == nullptr) return ncclSuccess;
  return nccl_.ncclCommWindowRegister(communicator, memory.data, one.bytes, &one.window,
                                      NCCL_WIN_COLL_SYMMETRIC);
}

// No window is no error (src/dev_runtime.cc). What fails of a registration by itself is that call
// alone (src/register/register.cc); it gives none either where it would be of no use.
bool NcclWindows::finish_add(ncclComm_t communicator) {
  Registered& one = all_.back();
  if (one.window != nullptr) {
    one.has_kernels = has_kernels(communicator, one);
    return true;
  }
  if (nccl_.ncclCommRegister != nullptr &&
      nccl_.ncclCommRegister(communicator, const_cast<void*>(one.memory), one.bytes, &one.local) ==
          ncclSuccess &&
      one.local != nullptr)
    return true;
  all_.pop_back();
  return false;
}

// Between hosts none sums (src/sym_kernels.cc, ncclSymkMask). Where devices do not reach each
// other, or NCCL_WIN_ENABLE is 0, 2.29 gives no window; 2.28 gives the memory's own registration
// for one, which is what registering it once more gives, too; 2.27 does not tell.
bool NcclWindows::has_kernels(ncclComm_t communicator, const Registered& one) const {
  if (!one_host_) return false;
  if (nccl_.version >= 22900) return true;
  if (nccl_.version < 22800) return env::get("NCCL_WIN_ENABLE").value_or("") != "0";
  void* own = nullptr;
  if (nccl_.ncclCommRegister == nullptr ||
      nccl_.ncclCommRegister(communicator, const_cast<void*>(one.memory), one.bytes, &own) !=
          ncclSuccess ||
      own == nullptr)
    return true;
  nccl_.ncclCommDeregister(communicator, own);
  return own != static_cast<const void*>(one.window);
}

ncclResult_t NcclWindows::remove(ncclComm_t communicator, const Buffer& memory) {
  const auto found = std::ranges::find(all_, memory.data, &Registered::memory);
  return found == all_.end() ? ncclSuccess : remove(communicator, found);
}

bool NcclWindows::has_kernels_for(const void* data, size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  return std::ranges::any_of(all_, [&](const Registered& one) {
    const auto* memory = static_cast<const std::byte*>(one.memory);
    return one.has_kernels && memory <= begin && begin + bytes <= memory + one.bytes;
  });
}

ncclResult_t NcclWindows::remove_last(ncclComm_t communicator) {
  return remove(communicator, std::prev(all_.end()));
}

ncclResult_t NcclWindows::remove(ncclComm_t communicator, std::vector<Registered>::iterator which) {
  const Registered one = *which;
  all_.erase(which);
  return one.window != nullptr ? nccl_.ncclCommWindowDeregister(communicator, one.window)
                               : nccl_.ncclCommDeregister(communicator, one.local);
}

}  // namespace hvd
