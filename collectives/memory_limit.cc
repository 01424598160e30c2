#include "collectives/memory_limit.h"

#include <array>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>

namespace hvd {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Nothing for "max", for a missing file, and for version 1's "no limit" (a number near 2^63).
std::optional<uint64_t> read_number(const std::string& path) {
  const std::string text = read_file(path);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data() || value >= uint64_t{1} << 62) return std::nullopt;
  return value;
}

// The number behind `name` at the start of a line, or 0.
uint64_t number_of(const std::string& text, std::string_view name) {
  std::istringstream lines(text);
  for (std::string line, key; std::getline(lines, line);) {
    std::istringstream words(line);
    uint64_t value = 0;
    if (words >> key >> value && key == name) return value;
  }
  return 0;
}

struct Version {
  std::string root;  // where the hierarchy is mounted
  const char* limit;
  const char* used;
  std::array<const char*, 2> cache;
};

std::optional<MemoryLimit> search(const Version& version, std::string group, uint64_t bytes) {
  while (true) {
    const std::string folder = version.root + group + "/";
    const std::optional<uint64_t> limit = read_number(folder + version.limit);
    const std::optional<uint64_t> used = read_number(folder + version.used);
    if (limit && used) {
      // Page cache goes before anybody is killed, the pages in use after the others.
      const std::string stat = read_file(folder + "memory.stat");
      const uint64_t cache = number_of(stat, version.cache[0]) + number_of(stat, version.cache[1]);
      const uint64_t held = *used > cache ? *used - cache : 0;
      if (held > *limit || bytes > *limit - held)
        return MemoryLimit{"control group " + (group.empty() ? "/" : group), *limit, held};
    }
    if (group.empty()) return std::nullopt;
    group.erase(group.rfind('/'));
  }
}

std::optional<MemoryLimit> search_groups(uint64_t bytes, const std::string& proc,
                                         const std::string& cgroups) {
  std::istringstream lines(read_file(proc + "/self/cgroup"));
  std::string line;
  while (std::getline(lines, line)) {  // "0::/path", or "7:memory:/path" in version 1
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string group = line.substr(second + 1);
    while (!group.empty() && group.back() == '/') group.pop_back();
    if (!group.empty() && group.front() != '/') continue;
    std::optional<MemoryLimit> found;
    if (controllers.empty())
      found = search({cgroups, "memory.max", "memory.current", {"inactive_file", "active_file"}},
                     group, bytes);
    else if (("," + controllers + ",").find(",memory,") != std::string::npos)
      found = search({cgroups + "/memory",
                      "memory.limit_in_bytes",
                      "memory.usage_in_bytes",
                      {"total_inactive_file", "total_active_file"}},
                     group, bytes);
    if (found) return found;
  }
  return std::nullopt;
}

std::optional<MemoryLimit> look_at_machine(uint64_t bytes, const std::string& proc) {
  const std::string text = read_file(proc + "/meminfo");
  const auto bytes_of = [&](std::string_view name) { return number_of(text, name) * 1024; };
  const uint64_t total = bytes_of("MemTotal:") + bytes_of("SwapTotal:");
  const uint64_t left = bytes_of("MemAvailable:") + bytes_of("SwapFree:");
  if (total == 0 || bytes <= left) return std::nullopt;
  return MemoryLimit{"this machine", total, total - left};
}

}  // namespace

std::optional<MemoryLimit> tightest_memory_limit(uint64_t bytes, const std::string& proc,
                                                 const std::string& cgroups) {
  const std::optional<MemoryLimit> found = search_groups(bytes, proc, cgroups);
  return found ? found : look_at_machine(bytes, proc);
}

}  // namespace hvd
