// A kernel as the CPU does it, and what it touches of its device's memory.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/collectives/nccl/standin/cuda_device.h"

namespace hvd {

struct Touched {
  const void* pointer = nullptr;
  size_t bytes = 0;
};

struct Kernel {
  std::vector<size_t> sizes;  // of its arguments, in bytes
  // As the arguments tell; without, it is not looked at.
  std::function<std::vector<Touched>(void** arguments)> touches;
  // `memory`: where what it touches lies.
  std::function<void(const unsigned grid[3], const unsigned block[3], void** arguments,
                     const std::vector<std::byte*>& memory)>
      run;
};

// Modules that were loaded in it.
void forget_kernels_of(CUcontext context);

// Those of collectives/nccl, by name: each thread does what kernels.h has it do on a GPU.
std::map<std::string, Kernel> product_kernels();

}  // namespace hvd
