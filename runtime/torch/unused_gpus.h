// What a program is told, once, about GPUs that it does not train on.
//
// Pure but for having said so. Any thread.
#pragma once

#include <atomic>
#include <optional>
#include <string>

namespace hvd {

// What is in the way, of hvd's build, the program and CUDA, which says `cuda`; `visible` is the
// value of CUDA_VISIBLE_DEVICES.
inline std::string why_no_gpu(bool built, bool linked, const std::string& cuda,
                              const std::optional<std::string>& visible) {
  if (!built) return "this build of hvd has no part for them";
  if (!linked) return "this program is linked without LibTorch's CUDA part (torch_cuda)";
  return "LibTorch finds none that it can use (" +
         (cuda.empty() ? "it may be built for a newer driver" : cuda) +
         (visible ? ", with CUDA_VISIBLE_DEVICES=" + *visible : "") + ")";
}

// By the user's wish there is no GPU for this process.
inline bool hides_gpus(const std::optional<std::string>& visible) {
  return visible && (visible->empty() || *visible == "-1" || *visible == "NoDevFiles");
}

class UnusedGpus {
 public:
  // Words for the first call of a host's first rank that sees GPUs; empty for all others.
  std::string words(int gpus, int local_rank, const std::string& why) {
    if (gpus == 0 || local_rank != 0 || said_.exchange(true)) return {};
    return "this machine has " + std::to_string(gpus) + (gpus == 1 ? " GPU" : " GPUs") + ", but " +
           why + " and trains on the CPU";
  }

 private:
  std::atomic<bool> said_{false};
};

}  // namespace hvd
