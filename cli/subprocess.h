// The one file that starts processes.
//
// spawn() must be called from a thread that lives as long as the process: the child's parent-death
// signal is tied to the thread, not to the process. The child shares our memory until exec
// (CLONE_VM | CLONE_VFORK), so a failed step comes back as a plain value and costs no pipe.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/unique_fd.h"

namespace hvd {

struct RlimitValue {
  int resource;
  rlimit value;
};

struct SpawnOptions {
  std::vector<std::string> argv;
  std::string
      program;  // what to execute, argv[0] if empty; without a slash it is looked for in `path`
  std::string path;                          // a PATH value
  const char* const* environment = nullptr;  // null-terminated, kept by the caller
  const char* directory = nullptr;
  int stdin_fd = 0, stdout_fd = 1, stderr_fd = 2;
  int extra_fd = -1;                 // keeps its number; -1: none
  bool parent_death_signal = false;  // SIGKILL when the calling thread ends
  bool new_session = false;
  std::optional<int> oom_score_adj;  // nothing: leave
  int file_mask = -1;                // umask, -1: leave
  std::span<const RlimitValue> limits;
  int core_filter = -1;  // its coredump_filter, -1: leave; ours is 0 afterwards
  unsigned long long ignored_signals =
      0;  // bit n-1 stays ignored; every other signal gets its default action
};

struct SpawnResult {
  pid_t pid = 0;  // 0: not started
  UniqueFd pidfd;
  int error = 0;  // errno of the step
  const char* step = "";
};

SpawnResult spawn(const SpawnOptions& options);

// Bit n-1 set: signal n is ignored now. Call before the first change.
unsigned long long ignored_signals();

}  // namespace hvd
