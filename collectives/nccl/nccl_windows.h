// What a communicator has registered of device memory: the same on all its ranks, in one order.
//
// As a window where NCCL has those and can end a sum in one (2.29.7), else by itself
// (ncclCommRegister), else not. Windows of all ranks lie at one offset to each other, which each
// rank counts for itself (NCCL's src/dev_runtime.cc, symMemoryObtain), so they are added and
// removed in the same order everywhere. NCCL has kernels of their own for them on one host alone,
// where all devices reach each other, and these sum floats of up to four bytes and do nothing else
// (src/sym_kernels.cc, ncclSymkMask and ncclSymkImplemented). The holder of the progress token
// only.
#pragma once

#include <vector>

#include "collectives/nccl/nccl_library.h"
#include "collectives/types.h"

namespace hvd {

class NcclWindows {
 public:
  explicit NcclWindows(const NcclLibrary& nccl);

  // A call of NCCL's, of all ranks; it may be under way after it has returned.
  ncclResult_t add(ncclComm_t communicator, const Buffer& memory);
  // Once it is not: has that memory been registered?
  bool finish_add(ncclComm_t communicator);
  // The same, of what was added; nothing is done of what was not.
  ncclResult_t remove(ncclComm_t communicator, const Buffer& memory);

  bool empty() const { return all_.empty(); }
  // Before the communicator is let go of.
  ncclResult_t remove_last(ncclComm_t communicator);

 private:
  struct Registered {
    const void* memory = nullptr;
    size_t bytes = 0;
    ncclWindow_t window = nullptr;
    void* local = nullptr;  // by itself
  };
  ncclResult_t remove(ncclComm_t communicator, std::vector<Registered>::iterator which);

  const NcclLibrary& nccl_;
  const bool has_windows_;
  std::vector<Registered> all_;  // into the last one NCCL writes while it is added
};

}  // namespace hvd
