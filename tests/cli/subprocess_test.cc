// Starting a process, and ending all that hangs below this one.
#include "cli/subprocess.h"

#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <set>
#include <thread>

#include "cli/agent/descendants.h"
#include "cli/pipe.h"
#include "runtime/base/deadline.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

SpawnResult spawn_shell(const std::string& script, int out, SpawnOptions options = {}) {
  options.argv = {"sh", "-c", script};
  options.path = "/nowhere:/usr/bin:/bin";
  options.environment = environ;
  options.stdout_fd = out;
  return spawn(options);
}

std::string read_all(int fd) {
  std::string all;
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;) all.append(buffer, size_t(n));
  return all;
}

int wait_status(pid_t pid) {
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  return status;
}

std::string run_shell(const std::string& script, SpawnOptions options = {}) {
  Pipe out = make_pipe();
  const SpawnResult result = spawn_shell(script, out.write.get(), std::move(options));
  REQUIRE(result.pid > 0);
  out.write.reset();
  std::string text = read_all(out.read.get());
  wait_status(result.pid);
  return text;
}

// From here on this thread, and what it starts, is answered so where it asks for a pidfd of a
// clone.
bool forbid_pidfd_of_clone(uint32_t answer) {
  constexpr auto kFlags = offsetof(seccomp_data, args);  // of its first word: the lower half
  std::array<sock_filter, 6> code = {
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kFlags),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_PIDFD, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | answer),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{code.size(), code.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace

TEST_CASE("subprocess: a filter that refuses the pidfd of a clone is no hindrance") {
  for (const int error : {EPERM, EINVAL}) {
    bool forbidden = false;
    SpawnResult result, missing;
    int seen = 0;
    siginfo_t end{};
    std::thread([&] {  // a filter stays for as long as its thread lives
      forbidden = forbid_pidfd_of_clone(uint32_t(error));
      result = spawn_shell("exit 7", STDOUT_FILENO);
      seen = waitid(P_PIDFD, id_t(result.pidfd.get()), &end, WEXITED);
      SpawnOptions options;
      options.program = "not-there";
      missing = spawn_shell("", STDOUT_FILENO, options);
    })
        .join();
    REQUIRE(forbidden);
    CHECK(result.error == 0);
    CHECK(seen == 0);
    CHECK(end.si_pid == result.pid);
    CHECK(end.si_status == 7);
    CHECK(missing.error == ENOENT);
    CHECK(std::string(missing.step) == "exec");
  }
}

TEST_CASE("subprocess: runs a program from the path and gives its status and pidfd") {
  const SpawnResult result = spawn_shell("exit 7", STDOUT_FILENO);
  REQUIRE(result.pid > 0);
  pollfd one{result.pidfd.get(), POLLIN, 0};
  REQUIRE(poll(&one, 1, 20'000) == 1);
  CHECK(WEXITSTATUS(wait_status(result.pid)) == 7);
}

TEST_CASE("subprocess: what cannot be started says which step failed and why") {
  SpawnOptions options;
  options.environment = environ;
  options.path = "/usr/bin:/bin";
  options.argv = {"no-such-program-anywhere"};
  SpawnResult result = spawn(options);
  CHECK(result.pid == 0);
  CHECK(result.error == ENOENT);
  CHECK(std::string(result.step) == "exec");
  options.argv = {"/etc/passwd"};
  result = spawn(options);
  CHECK(result.error == EACCES);
  options.argv = {"true"};
  options.directory = "/nowhere";
  result = spawn(options);
  CHECK(result.error == ENOENT);
  CHECK(std::string(result.step) == "chdir");
  CHECK(waitpid(-1, nullptr, WNOHANG) == -1);  // no child is left of it
}

TEST_CASE("subprocess: who had no memory for a child's stack starts the next one") {
  SpawnOptions options;
  options.environment = environ;
  options.argv = {"/bin/true"};
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  SpawnResult without, with;
  std::thread([&] {  // a thread's first child needs a stack
    rlimit none = before;
    none.rlim_cur = 1;
    setrlimit(RLIMIT_AS, &none);
    without = spawn(options);
    setrlimit(RLIMIT_AS, &before);
    with = spawn(options);
  })
      .join();
  CHECK(without.error == ENOMEM);
  CHECK(std::string(without.step) == "mmap");
  REQUIRE(with.pid > 0);
  CHECK(wait_status(with.pid) == 0);
}

TEST_CASE("subprocess: signals, mask, limits, umask and session are as asked for") {
  sigset_t blocked, before;
  sigfillset(&blocked);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  SpawnOptions options;
  options.new_session = true;
  options.file_mask = 027;
  const RlimitValue limits[] = {{int(RLIMIT_CORE), {0, 0}}};
  options.limits = limits;
  options.core_filter = 0x12;
  options.ignored_signals = 1ull << (SIGHUP - 1);
  const std::string text = run_shell(
      "grep -E 'SigBlk|SigIgn' /proc/self/status; umask; ulimit -c; "
      "cat /proc/self/coredump_filter; "
      "[ $(ps -o sid= -p $$) = $$ ] && echo leader",
      options);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  unsigned own = 0x12;
  std::ifstream("/proc/self/coredump_filter") >> std::hex >> own;
  CHECK(own == 0);
  CHECK(text ==
        "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000001\n0027\n0\n00000012\nleader\n");
}

TEST_CASE("subprocess: an extra descriptor keeps its number") {
  Pipe pipe = make_pipe();
  SpawnOptions options;
  options.extra_fd = pipe.write.get();
  run_shell("echo hello >/dev/fd/" + std::to_string(options.extra_fd), options);
  pipe.write.reset();
  CHECK(read_all(pipe.read.get()) == "hello\n");
}

TEST_CASE("descendants: all are found, ended and reaped, whatever they do") {
  REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
  Pipe ready = make_pipe();
  SpawnOptions options;
  options.new_session = true;
  const SpawnResult result = spawn_shell(
      "trap '' TERM; setsid sleep 100 & (sleep 100 &); sh -c 'kill -STOP $$' & echo up; sleep 100; "
      "true",
      ready.write.get(), options);
  REQUIRE(result.pid > 0);
  char letters[3];
  REQUIRE(read(ready.read.get(), letters, 3) == 3);
  CHECK(descendants(getpid()).size() >= 4);
  std::set<pid_t> reaped;
  CHECK(end_descendants(20s, [&](pid_t pid, int) { reaped.insert(pid); }) == 0);
  CHECK(reaped.contains(result.pid));
  CHECK(reaped.size() >= 4);
  CHECK(waitpid(-1, nullptr, WNOHANG) == -1);
}

TEST_CASE("descendants: who is spared is left alone, with all below it, and is not waited for") {
  REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
  Pipe ready = make_pipe();
  const SpawnResult spared = spawn_shell("sleep 100 & echo; wait", ready.write.get());
  const SpawnResult other = spawn_shell("trap '' TERM; sleep 100 & echo; wait", ready.write.get());
  REQUIRE(spared.pid > 0);
  REQUIRE(other.pid > 0);
  char lines[2];
  for (char& line : lines) REQUIRE(read(ready.read.get(), &line, 1) == 1);
  CHECK(descendants(getpid()).size() == 4);
  std::set<pid_t> reaped;
  const auto note = [&](pid_t pid, int) { reaped.insert(pid); };
  CHECK(end_descendants(20s, note, [&](pid_t child) { return child == spared.pid; }) == 0);
  CHECK(reaped.size() == 2);  // the other and what it had started, which came to us
  const std::vector<Descendant> left = descendants(getpid());
  REQUIRE(left.size() == 2);
  CHECK(left[0].pid == spared.pid);
  CHECK(left[0].began == began(spared.pid));
  CHECK(left[0].began <= left[1].began);
  CHECK(std::all_of(left.begin(), left.end(), [](const Descendant& one) { return one.alive; }));
  CHECK(end_descendants(20s, note) == 0);
}

TEST_CASE("descendants: reaping stops at a child that has its own turn") {
  const SpawnResult mine = spawn_shell("exit 3", STDOUT_FILENO);
  REQUIRE(mine.pid > 0);
  pollfd one{mine.pidfd.get(), POLLIN, 0};
  REQUIRE(poll(&one, 1, 20'000) == 1);
  int others = 0;
  const auto count = [&](pid_t, int) { ++others; };
  CHECK(reap_until([&](pid_t pid) { return pid == mine.pid; }, count) == Reaped::kStopped);
  CHECK(others == 0);
  CHECK(reap_until([](pid_t) { return false; }, count) == Reaped::kNothingLeft);
  CHECK(others == 1);
}

TEST_CASE("descendants: a signal reaches only the child of the parent it was seen below") {
  const SpawnResult child = spawn_shell("exec sleep 100", STDOUT_FILENO);
  REQUIRE(child.pid > 0);
  CHECK_FALSE(signal_descendant({child.pid, 1}, SIGKILL));  // another parent: moved, not hit
  CHECK(waitpid(child.pid, nullptr, WNOHANG) == 0);
  CHECK(signal_descendant({child.pid, getpid()}, SIGKILL));
  CHECK(WTERMSIG(wait_status(child.pid)) == SIGKILL);
}

}  // namespace hvd
