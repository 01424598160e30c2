#include "cli/gpu_note.h"

#include <algorithm>
#include <map>
#include <set>

namespace hvd {
namespace {

constexpr size_t kNamedMax = 4;  // GPUs in a line
constexpr const char *kProhibited = "Prohibited", *kExclusive = "Exclusive_Process";

// `parts` are those of it that ranks are given; none: the whole.
std::string trouble_of(const Gpu& gpu, const std::set<std::string>& parts,
                       const std::function<GpuUser(int pid)>& user) {
  const std::string name = "GPU " + std::to_string(gpu.listed.index);
  if (!gpu.trouble.empty()) return name + ": nvidia-smi says " + gpu.trouble;
  if (is_useless(gpu)) return name + " has MIG on but no MIG device, so CUDA cannot use it";
  if (gpu.mode == kProhibited)
    return name + " is in compute mode Prohibited, so CUDA cannot use it";
  std::vector<const GpuUse*> others;
  bool tells_memory = !gpu.divided && !gpu.uses_unknown && gpu.free_mib && gpu.total_mib;
  for (const GpuUse& use : gpu.uses) {
    if (!use.part.empty() && !parts.empty() && !parts.contains(use.part)) continue;
    const GpuUser whose = user(use.pid);
    if (whose == GpuUser::kOther)
      others.push_back(&use);
    else
      tells_memory = false;
  }
  if (!others.empty()) {
    const GpuUse& first = *others[0];
    return name + " is in use by process " + std::to_string(first.pid) + " (" + first.name +
           (first.mib ? ", " + std::to_string(*first.mib) + " MiB" : "") + ")" +
           (others.size() > 1 ? " and " + std::to_string(others.size() - 1) + " more" : "");
  }
  if (!tells_memory || *gpu.free_mib >= *gpu.total_mib / 2) return "";
  return name + " has " + std::to_string(*gpu.free_mib) + " of " + std::to_string(*gpu.total_mib) +
         " MiB free";
}

}  // namespace

std::vector<SeenGpu> gpus_of_ranks(const GpuOptions& options, size_t ranks,
                                   const std::optional<std::string>& visible,
                                   std::span<const Gpu> gpus) {
  std::optional<std::vector<GpuName>> names;
  if (visible) names = names_visible_to_cuda(*visible);
  std::vector<SeenGpu> seen =
      options.devices.empty() ? seen_by_cuda(names, gpus) : named_gpus(options.devices, gpus);
  if (seen.size() > ranks) seen.resize(ranks);
  return seen;
}

std::string why_not_shared(const GpuOptions& options, size_t ranks, std::span<const SeenGpu> seen,
                           std::span<const Gpu> gpus, bool mps) {
  if (!options.share || ranks <= seen.size()) return "";
  for (const SeenGpu& one : seen) {
    const Gpu& gpu = gpus[one.place];
    const std::string index = std::to_string(gpu.listed.index);
    const bool exclusive = gpu.mode == kExclusive && !mps && !gpu.mps;
    if (!exclusive && gpu.mode != kProhibited) continue;
    return "--share-gpu: GPU " + index + " is in compute mode " + gpu.mode + ", which lets " +
           (exclusive ? "one process use it" : "nobody use it") +
           "; change that by nvidia-smi -i " + index + " -c DEFAULT" +
           (exclusive ? ", or start CUDA's MPS" : "");
  }
  return "";
}

std::string gpu_note(std::span<const Gpu> gpus, std::span<const SeenGpu> seen,
                     const std::function<GpuUser(int pid)>& user) {
  std::map<size_t, std::set<std::string>> parts;  // by place
  for (const SeenGpu& one : seen) {
    std::set<std::string>& own = parts[one.place];
    if (!one.part.empty()) own.insert(one.part);
  }
  std::vector<std::string> troubles;
  for (const auto& [place, own] : parts)
    if (std::string trouble = trouble_of(gpus[place], own, user); !trouble.empty())
      troubles.push_back(std::move(trouble));
  std::string text;
  for (size_t i = 0; i < std::min(troubles.size(), kNamedMax); ++i)
    text += (text.empty() ? "" : ", ") + troubles[i];
  if (troubles.size() > kNamedMax)
    text += ", and so on for " + std::to_string(troubles.size() - kNamedMax) + " more";
  return text.empty() ? "" : text + "; hvdrun devices tells of all";
}

}  // namespace hvd
