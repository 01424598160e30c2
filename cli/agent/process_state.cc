#include "cli/agent/process_state.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "runtime/base/unique_fd.h"

namespace hvd {
namespace {

// What <linux/pidfd.h> has since Linux 6.15; the headers here may be older.
struct PidfdInfo {
  uint64_t mask = 0, cgroup = 0;
  uint32_t ids[11] = {};
  int32_t exit_code = 0;
};
constexpr uint64_t kInfoExit = 1 << 3;
constexpr unsigned long kGetInfo = _IOWR(0xff, 11, PidfdInfo);

struct Stat {
  ProcessState state;
  unsigned flags = 0;
  unsigned long code_begins = 0;  // 1: of a process of which we may not see more
  int status = -1;                // as from waitpid(), once it is in exit; 0 if we may not see it
};

constexpr unsigned kExiting = 4;  // PF_EXITING in <linux/sched.h>

// Plain read(): a stream throws when the task goes away under it.
std::optional<Stat> read_stat(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t length = fd ? read(fd.get(), text, sizeof text - 1) : -1;
  if (length <= 0) return std::nullopt;
  text[length] = 0;
  // The name in parentheses may hold anything, also parentheses.
  const char* rest = std::strrchr(text, ')');
  Stat stat;
  if (rest == nullptr ||
      std::sscanf(rest + 1,
                  " %c %d %*d %*d %*d %*d %u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %*u "
                  "%*u %*d %*u %lu",
                  &stat.state.letter, &stat.state.parent, &stat.flags, &stat.code_begins) != 4)
    return std::nullopt;
  const char* last = std::strrchr(rest, ' ');
  if (std::sscanf(last, "%d", &stat.status) != 1) return std::nullopt;
  return stat;
}

}  // namespace

std::optional<ProcessState> read_process_state(pid_t pid) {
  const auto stat = read_stat("/proc/" + std::to_string(pid) + "/stat");
  if (!stat) return std::nullopt;
  return stat->state;
}

bool held_by_debugger(pid_t pid) {
  const auto state = pid > 0 ? read_process_state(pid) : std::nullopt;
  return state && state->held_by_debugger();
}

std::vector<pid_t> ancestry(pid_t pid, pid_t root) {
  constexpr int kDepthMax = 1000;  // a tree that changes under the walk must not hold it for ever
  std::vector<pid_t> chain;
  while (pid > 0 && chain.size() < kDepthMax) {
    chain.push_back(pid);
    if (pid == root) return chain;
    const auto state = read_process_state(pid);
    if (!state) break;
    pid = state->parent;
  }
  return {};
}

bool all_tasks_exiting(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/task";
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(opendir(folder.c_str()), closedir);
  if (!tasks)
    return kill(pid, 0) != 0 && errno == ESRCH;  // else /proc hides it, or open files ran out
  while (const dirent* entry = readdir(tasks.get())) {
    if (entry->d_name[0] == '.') continue;
    errno = 0;
    const auto stat = read_stat(folder + "/" + entry->d_name + "/stat");
    const bool gone = !stat && (errno == ENOENT || errno == ESRCH);
    // Still alive. A task missed because it was just being made has the SIGKILL pending that ends
    // the others.
    if (!gone && (!stat || (stat->flags & kExiting) == 0)) return false;
  }
  return true;
}

bool exits_well(pid_t pid) { return wait_status_of(pid, -1) == 0; }

std::optional<int> wait_status_of(pid_t pid, int pidfd) {
  const auto stat = read_stat("/proc/" + std::to_string(pid) + "/stat");
  if (stat && (stat->flags & kExiting) != 0 && stat->code_begins != 1) return stat->status;
  PidfdInfo info{.mask = kInfoExit};
  if (pidfd < 0 || ioctl(pidfd, kGetInfo, &info) != 0 || (info.mask & kInfoExit) == 0)
    return std::nullopt;
  return info.exit_code;
}

std::vector<pid_t> numbers_in(const std::string& folder) {
  std::vector<pid_t> all;
  std::error_code gone;
  for (std::filesystem::directory_iterator one(folder, gone), end; !gone && one != end;
       one.increment(gone)) {
    const std::string name = one->path().filename();
    pid_t number = 0;
    const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (error == std::errc() && *stop == '\0') all.push_back(number);
  }
  return all;
}

pid_t living_thread(pid_t pid) {
  for (const pid_t thread : numbers_in("/proc/" + std::to_string(pid) + "/task"))
    if (const auto state = read_process_state(thread);
        state && state->letter != 'Z' && state->letter != 'X')
      return thread;
  return 0;
}

}  // namespace hvd
