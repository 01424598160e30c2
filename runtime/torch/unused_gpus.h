// What a program is told, once, about GPUs that it does not train on.
//
// Pure but for having said so. Any thread.
#pragma once

#include <atomic>
#include <string>

namespace hvd {

class UnusedGpus {
 public:
  // Words for the first call of a host's first rank that sees GPUs; empty for all others.
  // `built`: it is the program that reaches no GPU, not this build of hvd.
  std::string words(int gpus, int local_rank, bool built) {
    if (gpus == 0 || local_rank != 0 || said_.exchange(true)) return {};
    return "this machine has " + std::to_string(gpus) + (gpus == 1 ? " GPU" : " GPUs") +
           (built ? ", but this program is linked without LibTorch's CUDA part (torch_cuda) and "
                    "trains on the CPU"
                  : ", but this build trains on the CPU");
  }

 private:
  std::atomic<bool> said_{false};
};

}  // namespace hvd
