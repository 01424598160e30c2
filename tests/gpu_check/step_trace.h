// What a GPU did in training steps, as CUPTI tells LibTorch's profiler: kernels and copies of the
// whole process, NCCL's and those below LibTorch too.
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace hvd {

// Trains a net of one bucket for each layer, whose backward pass computes for long between two of
// them. Returns lines, each with the rank before it: how many steps and buckets, then every kernel
// and copy, "kernel BEGIN END NAME", in microseconds. None where CUPTI cannot be had, as on a CPU.
// All ranks; each its own.
std::string trace_steps(c10::Device device);

}  // namespace hvd
