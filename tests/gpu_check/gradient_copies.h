// How often a step's gradients are copied, as LibTorch's own record of its operators has it.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "hvd/torch_types.h"

namespace hvd {

// Trains a small net on a device other than the CPU. Throws kInternal unless each gradient was
// copied into its bucket once, by operations that copy many, none was copied out or, where it was
// kept for the next step, at all, and .grad is memory of the buckets. Returns a line that says so.
// All ranks; each its own.
//
// What NCCL's backend does below LibTorch is not in that record.
std::string check_gradient_copies(c10::Device device,
                                  const DistributedOptimizerOptions& options = {});

}  // namespace hvd
