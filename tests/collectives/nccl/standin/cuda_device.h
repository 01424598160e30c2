// The devices of the stand-in, and the contexts through which they are used.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include "tests/collectives/nccl/standin/state.h"

// A device's primary context, the only kind there is; it lives as long as the process.
struct CUctx_st {
  int ordinal = 0;
  std::string name, uuid, pci;  // of the device; `uuid` 16 bytes
  int retained = 0;
  long long calls = 0;                           // of those that the setting lost_device counts
  bool lost = false;                             // by that
  std::atomic<CUresult> failure = CUDA_SUCCESS;  // of a kernel
};

namespace hvd {

// Of this thread; null: none, or its device was released.
HVD_STANDIN_API CUcontext current_context();
// What a call of the context ends with, other than success when its device is lost or a kernel has
// failed, or the process is about to end; `call` may be counted by the setting lost_device.
// "…any further CUDA work will return the same error. To continue using CUDA, the process must be
// terminated" (CUDA Driver API, CUDA_ERROR_LAUNCH_FAILED and CUDA_ERROR_ILLEGAL_ADDRESS). Here a
// device comes back when the setting is taken back. No lock is held.
HVD_STANDIN_API CUresult enter(CUcontext context, const char* call);
// The same of the thread's, which is put in place; CUDA_ERROR_INVALID_CONTEXT without one.
HVD_STANDIN_API CUresult enter_current(CUcontext& context, const char* call);
// The same, without a call: with whatever lock.
HVD_STANDIN_API CUresult failure_of(CUcontext context);
void fail_context(CUcontext context, CUresult failure);
// exit() has come to what was there before cuInit(): the driver is gone
// (CUDA_ERROR_DEINITIALIZED).
HVD_STANDIN_API bool process_ends();

// Those that this process sees, by ordinal; empty before cuInit().
const std::vector<CUcontext>& devices();

}  // namespace hvd
