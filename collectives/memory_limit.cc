#include "collectives/memory_limit.h"

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

// "inactive_file 4096" in memory.stat: page cache that goes before anybody is killed.
uint64_t droppable(const std::string& stat, std::string_view name) {
  std::istringstream lines(stat);
  std::string key;
  uint64_t value = 0;
  while (lines >> key >> value)
    if (key == name) return value;
  return 0;
}

struct Version {
  std::string root;  // where the hierarchy is mounted
  const char* limit;
  const char* used;
  const char* cache;
};

std::optional<MemoryLimit> search(const Version& version, std::string group, uint64_t bytes) {
  while (true) {
    const std::string folder = version.root + group + "/";
    const std::optional<uint64_t> limit = read_number(folder + version.limit);
    const std::optional<uint64_t> used = read_number(folder + version.used);
    if (limit && used) {
      const uint64_t cache = droppable(read_file(folder + "memory.stat"), version.cache);
      const uint64_t held = *used > cache ? *used - cache : 0;
      if (held > *limit || bytes > *limit - held)
        return MemoryLimit{group.empty() ? "/" : group, *limit, held};
    }
    if (group.empty()) return std::nullopt;
    group.erase(group.rfind('/'));
  }
}

}  // namespace

std::optional<MemoryLimit> tightest_memory_limit(uint64_t bytes, const std::string& proc,
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
      found = search({cgroups, "memory.max", "memory.current", "inactive_file"}, group, bytes);
    else if (("," + controllers + ",").find(",memory,") != std::string::npos)
      found = search({cgroups + "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                      "total_inactive_file"},
                     group, bytes);
    if (found) return found;
  }
  return std::nullopt;
}

}  // namespace hvd
