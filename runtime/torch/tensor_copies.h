// Copies between gradients and their buckets, made together: on a device by as few launches as can
// be.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "collectives/device_backend.h"

namespace hvd {

struct TensorCopy {
  at::Tensor to, from;
};

// What the device's kernel has to do for it; none where that cannot: it takes what lies alike in
// both, without gaps, as it lies.
std::optional<Cast> cast_of(const TensorCopy& copy);

// In the current stream, in no order of their own, and multiplied with `factor`: those that have a
// cast by `device`, if there is one and it can, as "hvd::cast" in LibTorch's record of its
// operators, all others by LibTorch. A tensor may be copied to itself.
void make_copies(std::vector<TensorCopy> copies, DeviceBackend* device, double factor = 1);

}  // namespace hvd
