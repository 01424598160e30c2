// How much memory the control groups of this process and the machine leave: asked before shared
// memory is faulted in, since afterwards the kernel answers with SIGKILL.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace hvd {

struct MemoryLimit {
  std::string where;  // "control group /a/b", its path below its hierarchy, or "this machine"
  uint64_t limit_bytes = 0;
  uint64_t used_bytes = 0;  // without page cache that the kernel can drop
};

// The first group, from this process's own upwards, that has less than `bytes` left, else the
// machine (with its swap space); nothing when all have room. `proc` and `cgroups` are /proc and
// /sys/fs/cgroup but in tests.
std::optional<MemoryLimit> tightest_memory_limit(uint64_t bytes, const std::string& proc = "/proc",
                                                 const std::string& cgroups = "/sys/fs/cgroup");

}  // namespace hvd
