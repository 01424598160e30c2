// The devices of the stand-in, and the contexts through which they are used.
#pragma once

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
};

namespace hvd {

// Of this thread; null: none, or its device was released.
HVD_STANDIN_API CUcontext current_context();
// Those that this process sees, by ordinal; empty before cuInit().
const std::vector<CUcontext>& devices();

}  // namespace hvd
