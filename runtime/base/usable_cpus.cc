// The affinity mask and the quotas of cgroup v2 and v1.
#include "runtime/base/usable_cpus.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <thread>

namespace hvd {
namespace {

int cpus_in_mask() {
  for (int most = 1024; most <= 1 << 20; most *= 2) {  // the kernel's mask may be longer than ours
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(most));
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most));
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    const int count = known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (known) return count;
  }
  return static_cast<int>(std::thread::hardware_concurrency());
}

// The first two numbers of a file; "max" reads as -1. False when there is no such file.
bool read_numbers(const std::string& path, long long* first, long long* second) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return false;
  char text[64] = {};
  const bool read = std::fgets(text, sizeof text, file) != nullptr;
  std::fclose(file);
  if (!read) return false;
  if (std::sscanf(text, "max %lld", second) == 1)
    *first = -1;
  else if (std::sscanf(text, "%lld %lld", first, second) < 1)
    return false;
  return true;
}

int bounded(int cpus, long long quota, long long period) {
  if (quota <= 0 || period <= 0) return cpus;
  return static_cast<int>(std::min<long long>(cpus, (quota + period - 1) / period));
}

// The smallest quota from this process's group up to the root.
int bound_by_group(int cpus, const std::string& mount, std::string group, bool v2) {
  for (;;) {
    const std::string directory = mount + group;
    long long quota = -1, period = 0;
    if (v2) {
      if (read_numbers(directory + "/cpu.max", &quota, &period))
        cpus = bounded(cpus, quota, period);
    } else if (read_numbers(directory + "/cpu.cfs_quota_us", &quota, &period) &&
               read_numbers(directory + "/cpu.cfs_period_us", &period, &period)) {
      cpus = bounded(cpus, quota, period);
    }
    if (group.empty()) return cpus;
    group.resize(std::min(group.rfind('/'), group.size()));
  }
}

}  // namespace

int usable_cpus() {
  int cpus = std::max(1, cpus_in_mask());
  std::FILE* groups = std::fopen("/proc/self/cgroup", "re");
  if (groups == nullptr) return cpus;
  char line[4096];
  while (std::fgets(line, sizeof line, groups) != nullptr) {
    const std::string text(line, std::string(line).find_last_not_of('\n') + 1);
    const size_t controllers = text.find(':'), path = text.find(':', controllers + 1);
    if (controllers == std::string::npos || path == std::string::npos) continue;
    const std::string names = "," + text.substr(controllers + 1, path - controllers - 1) + ",";
    std::string group = text.substr(path + 1);
    if (group == "/") group.clear();
    if (names == ",,") cpus = bound_by_group(cpus, "/sys/fs/cgroup", group, true);
    if (names.find(",cpu,") != std::string::npos)
      cpus = bound_by_group(cpus, "/sys/fs/cgroup/cpu", group, false);
  }
  std::fclose(groups);
  return std::max(1, cpus);
}

}  // namespace hvd
