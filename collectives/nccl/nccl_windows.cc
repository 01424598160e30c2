#include "collectives/nccl/nccl_windows.h"

#include <algorithm>
#include <iterator>

namespace hvd {
namespace {

// NCCL's kernels for windows look for an abort since 2.29.7 (src/include/nccl_device/impl, the
// waits of lsa_barrier__funcs.h and ll_a2a__funcs.h). In an older one a sum that a dead rank is
// missing from runs on, and ncclCommAbort() waits for it for ever.
constexpr int kAbortable = 22907;

}  // namespace

NcclWindows::NcclWindows(const NcclLibrary& nccl)
    : nccl_(nccl),
      has_windows_(nccl.ncclCommWindowRegister != nullptr && nccl.version >= kAbortable) {}

ncclResult_t NcclWindows::add(ncclComm_t communicator, const Buffer& memory) {
  Registered& one = all_.emplace_back();
  one.memory = memory.data;
  one.bytes = memory.bytes();
  if (!has_windows_) return ncclSuccess;
  return nccl_.ncclCommWindowRegister(communicator, memory.data, one.bytes, &one.window,
                                      NCCL_WIN_COLL_SYMMETRIC);
}

// No window is no error (src/dev_runtime.cc). What fails of a registration by itself is that call
// alone (src/register/register.cc); it gives none either where it would be of no use.
bool NcclWindows::finish_add(ncclComm_t communicator) {
  Registered& one = all_.back();
  if (one.window != nullptr) return true;
  if (nccl_.ncclCommRegister != nullptr &&
      nccl_.ncclCommRegister(communicator, const_cast<void*>(one.memory), one.bytes, &one.local) ==
          ncclSuccess &&
      one.local != nullptr)
    return true;
  all_.pop_back();
  return false;
}

ncclResult_t NcclWindows::remove(ncclComm_t communicator, const Buffer& memory) {
  const auto found = std::ranges::find(all_, memory.data, &Registered::memory);
  return found == all_.end() ? ncclSuccess : remove(communicator, found);
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
