#include "cli/gpu_table.h"

#include <algorithm>
#include <array>
#include <utility>

namespace hvd {
namespace {

constexpr const char* kDefaultMode = "Default";

using Row = std::array<std::string, 8>;

std::string text(const std::optional<long long>& number) {
  return number ? std::to_string(*number) : "-";
}

// "0,2,3"
std::string joined(std::span<const int> numbers) {
  std::string out;
  for (const int one : numbers) out += (out.empty() ? "" : ",") + std::to_string(one);
  return out;
}

std::string counted(const char* word, std::span<const int> numbers) {
  return std::string(word) + (numbers.size() == 1 ? " " : "s ") + joined(numbers);
}

Row row_of(const Gpu& gpu, const std::string& rank, const std::string& part) {
  return {rank,
          std::to_string(gpu.listed.index),
          gpu.name,
          gpu.pci,
          gpu.numa_node ? std::to_string(*gpu.numa_node) : "-",
          part.empty() ? text(gpu.free_mib) : "-",  // nvidia-smi tells the GPU's alone
          part.empty() ? text(gpu.total_mib) : "-",
          part.empty() ? gpu.listed.uuid : part};
}

std::string table(std::span<const Row> rows) {
  std::array<size_t, Row().size()> widths{};
  for (const Row& row : rows)
    for (size_t column = 0; column < row.size(); ++column)
      widths[column] = std::max(widths[column], row[column].size());
  std::string out;
  for (const Row& row : rows) {
    for (size_t column = 0; column + 1 < row.size(); ++column)
      out += row[column] + std::string(widths[column] - row[column].size() + 2, ' ');
    out += row.back() + "\n";
  }
  return out;
}

// Those that answer.
std::vector<Gpu> sound(std::span<const Gpu> all) {
  std::vector<Gpu> gpus;
  for (const Gpu& gpu : all)
    if (gpu.trouble.empty()) gpus.push_back(gpu);
  return gpus;
}

std::string peer_lines(std::span<const Gpu> all) {
  const std::vector<Gpu> gpus = sound(all);
  if (gpus.size() < 2) return "";
  if (std::ranges::any_of(gpus, [](const Gpu& gpu) { return !gpu.peers_known; }))
    return "peer access: not known\n";
  const auto has_all = [&](const Gpu& gpu) { return gpu.peers.size() + 1 >= gpus.size(); };
  if (std::ranges::all_of(gpus, has_all))
    return "peer access: each GPU reads the memory of every other\n";
  std::string out;
  for (const Gpu& gpu : gpus)
    out += "peer access: GPU " + std::to_string(gpu.listed.index) + " reads the memory of " +
           (gpu.peers.empty() ? "no other" : counted("GPU", gpu.peers)) + "\n";
  return out;
}

std::string use_lines(const Gpu& gpu) {
  std::string out;
  for (const GpuUse& use : gpu.uses)
    out += "in use: GPU " + std::to_string(gpu.listed.index) +
           (use.part.empty() ? "" : ", " + use.part + ",") + " by process " +
           std::to_string(use.pid) + ", " + use.name +
           (use.mib ? ", " + std::to_string(*use.mib) + " MiB" : "") + "\n";
  if (gpu.uses_unknown)
    out += "in use: GPU " + std::to_string(gpu.listed.index) + ", by whom is not known\n";
  return out;
}

std::string trouble_line(const Gpu& gpu) {
  if (gpu.trouble.empty()) return "";
  return "trouble: GPU " + std::to_string(gpu.listed.index) + ": nvidia-smi says " + gpu.trouble +
         "\n";
}

// Who starts a job without --share-gpu minds Prohibited alone.
std::string mode_line(const Gpu& gpu) {
  if (gpu.mode.empty() || gpu.mode == kDefaultMode) return "";
  return "compute mode: GPU " + std::to_string(gpu.listed.index) + " is in " + gpu.mode +
         (gpu.mps ? ", and has an MPS server" : "") + "\n";
}

std::string part_lines(const Gpu& gpu) {
  if (!gpu.divided) return "";
  std::string names;
  for (const std::string& part : gpu.listed.parts) names += (names.empty() ? "" : ",") + part;
  const std::string head = "divided: GPU " + std::to_string(gpu.listed.index);
  if (gpu.parts_unknown) return head + " (MIG), into what is not known\n";
  return head + (is_useless(gpu) ? " has MIG on but no MIG device; CUDA cannot use it\n"
                                 : " (MIG) into " + names +
                                       "; a rank takes one by --devices, and NCCL one rank of "
                                       "each GPU, unless by --share-gpu\n");
}

// On which GPUs CUDA's count may differ.
std::string order_line(std::span<const Gpu> all, const GpuPlan& plan) {
  const std::vector<Gpu> gpus = sound(all);
  const auto other = [&](const Gpu& gpu) { return gpu.name != gpus[0].name; };
  if (plan.order_known || std::ranges::none_of(gpus, other)) return "";
  return "order: CUDA counts GPUs of several kinds fastest first, not as above; "
         "CUDA_DEVICE_ORDER=PCI_BUS_ID changes that\n";
}

std::string driver_line(std::span<const Gpu> gpus) {
  const auto tells = std::ranges::find_if(gpus, [](const Gpu& gpu) { return !gpu.driver.empty(); });
  return tells == gpus.end() ? "" : "driver: " + tells->driver + "\n";
}

}  // namespace

bool is_useless(const Gpu& gpu) {
  return !gpu.trouble.empty() || (gpu.divided && gpu.listed.parts.empty() && !gpu.parts_unknown);
}

std::vector<SeenGpu> named_gpus(std::span<const GpuName> names, std::span<const Gpu> gpus) {
  std::vector<SeenGpu> seen;
  std::vector<ListedGpu> listed;
  for (const Gpu& gpu : gpus) listed.push_back(gpu.listed);
  for (const GpuName& name : names) {
    const std::optional<size_t> place = find_gpu(name, listed);
    if (!place) break;
    SeenGpu one{*place, find_part(name, listed[*place])};
    if (std::ranges::find(seen, one) != seen.end()) return {};
    seen.push_back(std::move(one));
  }
  return seen;
}

std::vector<SeenGpu> seen_by_cuda(const std::optional<std::vector<GpuName>>& names,
                                  std::span<const Gpu> gpus) {
  std::vector<SeenGpu> seen;
  if (names) seen = named_gpus(*names, gpus);
  for (size_t place = 0; !names && place < gpus.size(); ++place)
    if (!is_useless(gpus[place])) seen.push_back({place, ""});
  for (const SeenGpu& one : seen) {
    const std::vector<std::string>& parts = gpus[one.place].listed.parts;
    if (!parts.empty()) return {{one.place, one.part.empty() ? parts[0] : one.part}};
  }
  return seen;
}

std::string gpu_table(std::span<const Gpu> gpus, const GpuPlan& plan) {
  std::vector<Row> rows = {{"rank", "GPU", "name", "PCI", "NUMA", "free MiB", "of MiB", "UUID"}};
  std::vector<int> without, hidden;
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    const bool has_one = !plan.seen.empty() && (plan.shared || i < plan.seen.size());
    if (!has_one) {
      without.push_back(plan.ranks[i]);
      continue;
    }
    const SeenGpu& one = plan.seen[i % plan.seen.size()];
    rows.push_back(row_of(gpus[one.place], std::to_string(plan.ranks[i]), one.part));
  }
  for (size_t i = plan.ranks.size(); i < plan.seen.size(); ++i)
    rows.push_back(row_of(gpus[plan.seen[i].place], "-", plan.seen[i].part));
  for (size_t place = 0; place < gpus.size(); ++place) {
    const Gpu& gpu = gpus[place];
    if (!gpu.trouble.empty()) continue;  // it has a line
    if (std::ranges::none_of(plan.seen, [&](const SeenGpu& one) { return one.place == place; })) {
      rows.push_back(row_of(gpu, "-", ""));
      if (!is_useless(gpu)) hidden.push_back(gpu.listed.index);
    }
    for (const std::string& part : gpu.listed.parts)
      if (std::ranges::find(plan.seen, SeenGpu{place, part}) == plan.seen.end())
        rows.push_back(row_of(gpu, "-", part));
  }
  std::string out = table(rows);
  if (!hidden.empty()) out += "left out: " + counted("GPU", hidden) + ", by " + plan.source + "\n";
  if (!without.empty())
    out += "no GPU left: " + counted("rank", without) +
           "; start fewer ranks here, or let them share by --share-gpu\n";
  for (const Gpu& gpu : gpus) out += trouble_line(gpu);
  out += peer_lines(gpus);
  for (const Gpu& gpu : gpus) out += use_lines(gpu);
  for (const Gpu& gpu : gpus) out += part_lines(gpu);
  for (const Gpu& gpu : gpus) out += mode_line(gpu);
  return out + order_line(gpus, plan) + driver_line(gpus);
}

}  // namespace hvd
