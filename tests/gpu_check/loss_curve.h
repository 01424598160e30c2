// Whether ranks learn what one process learns that does all of their work, to the last bit.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "hvd/torch_types.h"

namespace hvd {

// Trains a small net twice on the device: as the job's ranks, each with its part of every batch,
// and as one process that adds up the parts' gradients in the order of the ranks. Throws kInternal
// unless the losses fall and are the same in all bits, kUnsupported in a job of more than two
// ranks: what NCCL adds up of more has an order of its own. Returns a line that says so. All ranks.
//
// It is so where the device computes the same from the same, for which hvdrun's --deterministic
// asks the libraries.
std::string check_loss_curve(c10::Device device, const DistributedOptimizerOptions& options = {});

}  // namespace hvd
