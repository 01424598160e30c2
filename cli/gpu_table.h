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

// CUDA cannot use it: it does not answer, or has MIG on and no MIG device.
bool is_useless(const Gpu& gpu);

// In the order of local ranks, as CUDA shows a program what `names` of CUDA_VISIBLE_DEVICES leave:
// up to the first that is not there, none where two are one, and where parts are among them the
// first part alone. Without names: of all that are of use.
std::vector<SeenGpu> seen_by_cuda(const std::optional<std::vector<GpuName>>& names,
                                  std::span<const Gpu> gpus);
// Of --devices, which gives each rank its own part; `names` that are there.
std::vector<SeenGpu> named_gpus(std::span<const GpuName> names, std::span<const Gpu> gpus);

struct GpuPlan {
  std::vector<int> ranks;     // of this host, in the order of their local ranks
  std::vector<SeenGpu> seen;  // by local rank
  bool shared = false;        // local ranks go round; else who finds none left has none
  std::string source;         // that left GPUs out: an option or a variable; empty: none did
  bool order_known = false;   // CUDA counts as they are seen here, whatever the GPUs are
};

std::string gpu_table(std::span<const Gpu> gpus, const GpuPlan& plan);

}  // namespace hvd
