// The kernels as nvcc has compiled them, a fatbin: machine code for some kinds of GPU, and PTX from
// which drivers compile it for others.
#pragma once

#include <cstddef>
#include <span>

namespace hvd {

std::span<const std::byte> kernels_image();

}  // namespace hvd
