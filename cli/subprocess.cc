#include "cli/subprocess.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr size_t kStackBytes = 64u << 10;
constexpr const char* kCoreFilter = "/proc/self/coredump_filter";

struct Child {
  const SpawnOptions* options;
  const std::vector<std::string>* candidates;
  char* const* argv;
  char oom_text[16] = {}, core_text[16] = {};
  pid_t parent;
  unsigned long long ignored_here;
  int error = 0;
  const char* step = "";
};

int give_up(Child& child, const char* step) {
  child.error = errno;
  child.step = step;
  _exit(127);
}

// exec itself turns handlers into default actions, so only what is ignored here and there has to be
// made equal.
void reset_signals(unsigned long long ignored_here, unsigned long long wanted) {
  struct sigaction action{};
  for (int signal = 1; signal < 65; ++signal) {
    unsigned long long bit = 1ull << (signal - 1);
    if (!((ignored_here ^ wanted) & bit)) continue;
    action.sa_handler = wanted & bit ? SIG_IGN : SIG_DFL;
    sigaction(signal, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// dup2 onto itself would keep close-on-exec, and a source below 3 could be overwritten before it is
// used.
bool place(int fd, int target) {
  if (fd == target) return fcntl(fd, F_SETFD, 0) == 0;
  return dup2(fd, target) == target;
}

// Without a word where it fails: the kernel may have no such file.
void write_own(const char* file, const char* text) {
  if (text[0] == 0) return;
  const int fd = open(file, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  [[maybe_unused]] const ssize_t written = write(fd, text, strlen(text));
  close(fd);
}

// Runs in the child on its own stack, in the parent's memory: async-signal-safe calls only.
int child_main(void* argument) {
  Child& child = *static_cast<Child*>(argument);
  const SpawnOptions& options = *child.options;
  if (options.parent_death_signal) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != child.parent) _exit(127);
  }
  if (options.new_session && setsid() < 0) give_up(child, "setsid");
  write_own("/proc/self/oom_score_adj", child.oom_text);
  write_own(kCoreFilter, child.core_text);  // of the memory that it shares, too
  for (const RlimitValue& limit : options.limits)
    setrlimit(__rlimit_resource_t(limit.resource), &limit.value);
  if (options.file_mask >= 0) umask(mode_t(options.file_mask));
  if (!place(options.stdin_fd, 0) || !place(options.stdout_fd, 1) || !place(options.stderr_fd, 2) ||
      (options.extra_fd >= 0 && !place(options.extra_fd, options.extra_fd)))
    give_up(child, "dup2");
  if (options.directory && chdir(options.directory) != 0) give_up(child, "chdir");
  reset_signals(child.ignored_here, options.ignored_signals);
  int error = ENOENT;
  for (const std::string& candidate : *child.candidates) {
    execve(candidate.c_str(), child.argv, const_cast<char* const*>(options.environment));
    if (errno != ENOENT && errno != ENOTDIR)
      error = errno;  // as execvp: a permission error wins over "not found"
    if (errno != ENOENT && errno != ENOTDIR && errno != EACCES) break;
  }
  errno = error;
  give_up(child, "exec");
  return 0;
}

std::vector<std::string> candidates(const SpawnOptions& options) {
  const std::string& name = options.program.empty() ? options.argv[0] : options.program;
  if (name.find('/') != std::string::npos) return {name};
  std::vector<std::string> all;
  for (size_t begin = 0; begin <= options.path.size() && !name.empty();) {
    size_t end = options.path.find(':', begin);
    if (end == std::string::npos) end = options.path.size();
    std::string folder = options.path.substr(begin, end - begin);
    all.push_back(folder.empty() ? "./" + name : folder + "/" + name);
    begin = end + 1;
  }
  return all;
}

// The top of a stack for one child at a time; null: there is no memory for it now.
char* child_stack() {
  static thread_local void* base = MAP_FAILED;  // kept: one mapping for all children of this thread
  if (base == MAP_FAILED)
    base = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  return base == MAP_FAILED ? nullptr : static_cast<char*>(base) + kStackBytes;
}

SpawnResult failure_of(const char* step, int error) {
  SpawnResult result;
  result.error = error;
  result.step = step;
  return result;
}

// glibc's clone() takes CLONE_PIDFD like clone3 does (the descriptor comes back through parent_tid)
// and needs no assembly of ours; filters of system calls that refuse clone3 with ENOSYS let it
// pass. One that refuses that flag, or a kernel in user space that knows it not, gets a plain
// clone: until we reap the child its number is its own.
SpawnResult clone_child(Child& child, char* stack) {
  constexpr int kFlags = CLONE_VM | CLONE_VFORK | SIGCHLD;
  int pidfd = -1;
  pid_t pid = clone(child_main, stack, kFlags | CLONE_PIDFD, &child, &pidfd);
  if (pid < 0 && (errno == EPERM || errno == EINVAL || errno == ENOSYS)) {
    pidfd = -1;
    pid = clone(child_main, stack, kFlags, &child);
  }
  if (pid < 0) return failure_of("clone", errno);
  if (pidfd < 0) pidfd = int(syscall(SYS_pidfd_open, pid, 0));
  if (pidfd < 0) {
    const int error = errno;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return failure_of("pidfd_open", error);
  }
  SpawnResult result;
  result.pid = pid;
  result.pidfd.reset(pidfd);
  return result;
}

}  // namespace

SpawnResult spawn(const SpawnOptions& options) {
  HVD_CHECK(options.stdin_fd >= 0 && options.stdout_fd >= 0 && options.stderr_fd >= 0,
            "a child is given a descriptor that is not open");
  char* const stack = child_stack();
  if (stack == nullptr) return failure_of("mmap", ENOMEM);
  std::vector<std::string> files = candidates(options);
  std::vector<char*> argv;
  for (const std::string& word : options.argv) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  static thread_local const unsigned long long ignored_here =
      ignored_signals();  // callers change none after the first
  Child child{.options = &options,
              .candidates = &files,
              .argv = argv.data(),
              .parent = getpid(),
              .ignored_here = ignored_here};
  if (options.oom_score_adj)
    std::snprintf(child.oom_text, sizeof child.oom_text, "%d", *options.oom_score_adj);
  if (options.core_filter >= 0)
    std::snprintf(child.core_text, sizeof child.core_text, "0x%x", unsigned(options.core_filter));
  // With every signal blocked no handler or default action runs in the shared memory before the
  // child's own reset.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  SpawnResult result = clone_child(child, stack);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (options.core_filter >= 0) write_own(kCoreFilter, "0");
  if (result.error == 0 && child.error != 0) {
    waitpid(result.pid, nullptr, 0);
    return failure_of(child.step, child.error);
  }
  return result;
}

unsigned long long ignored_signals() {
  unsigned long long bits = 0;
  struct sigaction now{};
  for (int signal = 1; signal < 65; ++signal)
    if (sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN)
      bits |= 1ull << (signal - 1);
  return bits;
}

}  // namespace hvd
