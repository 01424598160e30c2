#include "cli/plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_set>

#include "cli/quoted.h"

namespace hvd {
namespace {

constexpr size_t kCommandBytesMax = 1 << 20;
constexpr size_t kPlaceWidth = std::string_view("local rank    ").size();

std::string padded(std::string text, size_t width) {
  text.resize(std::max(text.size(), width), ' ');
  return text;
}

// "rank 3", "ranks 0,2-5".
std::string ranks_text(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    out += (i > 0 ? "," : "") + std::to_string(ranks[i]);
    if (last > i) out += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return out;
}

}  // namespace

std::vector<std::string> changed_names(std::span<const std::string> before,
                                       std::span<const std::string> after) {
  const std::unordered_set<std::string_view> unchanged(before.begin(), before.end());
  std::vector<std::string> names;
  for (const std::string& entry : after) {
    if (!unchanged.contains(entry)) names.push_back(entry.substr(0, entry.find('=')));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::string plan_text(const JobSpec& spec, std::span<const Slot> slots,
                      std::span<const std::string> variables) {
  size_t host_width = 4;
  for (const Slot& slot : slots) host_width = std::max(host_width, slot.world.host.size());
  const std::vector<GpuName>& gpus = spec.gpus.devices;
  std::string out = "rank    " + padded("host", host_width) + "  local rank" +
                    (gpus.empty() ? "" : "    GPU") + "\n";
  for (const Slot& slot : slots) {
    const std::string place =
        std::to_string(slot.world.local_rank) + " of " + std::to_string(slot.world.local_size);
    out += padded(std::to_string(slot.world.rank), 8) + padded(slot.world.host, host_width) + "  ";
    if (!gpus.empty())
      out += padded(place, kPlaceWidth) + gpus[size_t(slot.world.local_rank) % gpus.size()].text;
    out += (gpus.empty() ? place : "") + "\n";
  }
  out += "command: " + shell_words(spec.command, kCommandBytesMax) + "\n";
  if (!spec.directory.empty()) out += "directory: " + shell_word(spec.directory) + "\n";
  std::set<int> others;
  for (const Slot& slot : slots)
    if (spec.hosts.at(size_t(slot.host)).remote) others.insert(slot.host);
  if (!others.empty())
    out += "not checked: " + std::to_string(others.size()) +
           (others.size() == 1 ? " other host" : " other hosts") +
           ", which a dry run does not reach, and the command there\n";
  const auto uncounted =
      std::ranges::count_if(others, [&](int host) { return spec.hosts[size_t(host)].per_gpu > 0; });
  if (uncounted > 0)
    out += "not counted: the GPUs of " + std::to_string(uncounted) +
           (uncounted == 1 ? " other host" : " other hosts") +
           ", each of which is a slot where none are given: " +
           (spec.size_open ? "there may be more ranks" : "ranks may be spread otherwise") + "\n";
  out += "variables:";
  for (const std::string& name : variables) out += " " + name;
  out += "\n";
  std::map<std::vector<int>, std::string> shown;
  for (const EnvironmentSetting& one : spec.environment)
    if (one.shown) shown[one.ranks] += " " + one.name + "=" + shell_word(one.value.value_or(""));
  for (const auto& [ranks, values] : shown)
    out += "set for GPUs" + (ranks.empty() ? "" : " of " + ranks_text(ranks)) + ":" + values + "\n";
  for (const EnvironmentSetting& one : spec.environment)
    if (!one.ranks.empty() && !one.shown)
      out += "variable of " + ranks_text(one.ranks) + ": " + one.name + "\n";
  return out;
}

}  // namespace hvd
