// Which rank of a host would use which of its GPUs, and what `hvdrun devices` prints of that. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/gpus.h"

namespace hvd {

// What a rank can be given: a GPU, or a part of a divided one.
struct SeenGpu {
  size_t place = 0;  // among the GPUs
  std::string part;  // "MIG-…", whole; empty: the GPU is
  friend bool operator==(const SeenGpu&, const SeenGpu&) = default;
};

// In the order of local ranks: of all GPUs, as CUDA shows them, but for those that have MIG on and
// no MIG device; of `names`, up to the first that is not there, and none where two are one, as CUDA
// has it.
std::vector<SeenGpu> seen_gpus(const std::optional<std::vector<GpuName>>& names,
                               std::span<const Gpu> gpus);

struct GpuPlan {
  std::vector<int> ranks;       // of this host, in the order of their local ranks
  std::vector<SeenGpu> seen;    // by local rank
  bool shared = false;          // local ranks go round; else who finds none left has none
  std::string source;           // that left GPUs out: an option or a variable; empty: none did
  bool ordered_by_bus = false;  // CUDA counts as nvidia-smi does, whatever the GPUs are
};

std::string gpu_table(std::span<const Gpu> gpus, const GpuPlan& plan);

}  // namespace hvd
