// What LibTorch computes on the stand-in's devices: every operator, by the CPU's kernels.
//
// One that only writes to tensors that it is given runs when its stream comes to it, as on a GPU.
// For one that makes tensors the host waits first, since their shapes are known only then.
#pragma once

#include <c10/core/Device.h>

#include "tests/runtime/torch/device/streams.h"

namespace hvd {

// GPU `ordinal`, for LibTorch. Whoever calls this has its operators linked.
c10::Device standin_torch_device(int ordinal);

}  // namespace hvd
