#include "cli/gpu_note.h"

#include <algorithm>
#include <map>
#include <set>

namespace hvd {
namespace {

constexpr size_t kNamedMax = 4;  // GPUs in a line

// `parts` are those of it that ranks are given; none: the whole.
std::string trouble_of(const Gpu& gpu, const std::set<std::string>& parts,
                       const std::function<GpuUser(int pid)>& user) {
  const std::string name = "GPU " + std::to_string(gpu.listed.index);
  if (gpu.divided && gpu.listed.parts.empty())
    return name + " has MIG on but no MIG device, so CUDA cannot use it";
  std::vector<const GpuUse*> others;
  bool tells_memory = !gpu.divided && gpu.free_mib && gpu.total_mib;
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

std::vector<SeenGpu> gpus_of_ranks(const JobSpec& spec, std::span<const Slot> slots,
                                   const std::optional<std::string>& visible,
                                   std::span<const Gpu> gpus) {
  std::optional<std::vector<GpuName>> names;
  if (!spec.gpus.devices.empty())
    names = spec.gpus.devices;
  else if (visible)
    names = names_visible_to_cuda(*visible);
  std::vector<SeenGpu> seen = seen_gpus(names, gpus);
  const auto here = std::ranges::count_if(
      slots, [&](const Slot& slot) { return !spec.hosts.at(size_t(slot.host)).remote; });
  if (seen.size() > size_t(here)) seen.resize(size_t(here));
  return seen;
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
