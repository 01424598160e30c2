// The kernels as nvcc has compiled them: a fatbin of machine code for some kinds of GPU, and PTX
// from which drivers compile it for others, or where that of another CUDA's nvcc is none for them.
#pragma once

#include <cstddef>
#include <span>

namespace hvd {

std::span<const std::byte> kernels_image();
const char* kernels_ptx();  // a text

}  // namespace hvd
