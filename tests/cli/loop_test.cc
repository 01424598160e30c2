// The event loop: deadlines, where the kernel waits to the microsecond and where it does not.
#include "cli/loop.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <thread>

#include "cli/pipe.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

// From here on this thread is answered as by a kernel, or a container's filter, without it.
bool forbid_epoll_pwait2(uint32_t answer) {
  std::array<sock_filter, 4> code = {
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait2, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | answer),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{code.size(), code.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// What every loop has to do: sleep to a deadline and not beyond an event, and take one in the past.
struct Seen {
  bool slept = false, handled = false, past = false;
};

Seen exercise() {
  Seen seen;
  Loop loop;
  Pipe pipe = make_pipe();
  loop.watch(pipe.read.get(), EPOLLIN | EPOLLONESHOT, [&](uint32_t) { seen.handled = true; });
  for (const auto pause : {1us, 300us, 2500us}) {
    const TimePoint deadline = Clock::now() + pause;
    loop.turn(deadline);
    seen.slept = Clock::now() >= deadline && !seen.handled;
    if (!seen.slept) return seen;
  }
  loop.turn(Clock::now() - 1h);
  seen.past = true;
  if (write(pipe.write.get(), "x", 1) == 1) loop.turn(std::nullopt);
  return seen;
}

void check(const Seen& seen) {
  CHECK(seen.slept);
  CHECK(seen.past);
  CHECK(seen.handled);
}

}  // namespace

TEST_CASE("loop: sleeps to its deadline, and until an event without one") { check(exercise()); }

TEST_CASE("loop: what came by the time that a signal ended the wait is handled before it returns") {
  Loop loop;
  static Pipe pipe = make_pipe();
  bool handled = false;
  loop.watch(pipe.read.get(), EPOLLIN | EPOLLONESHOT, [&](uint32_t) { handled = true; });
  struct sigaction writes{}, before{};
  writes.sa_handler = [](int) { [[maybe_unused]] const auto n = write(pipe.write.get(), "x", 1); };
  REQUIRE(sigaction(SIGALRM, &writes, &before) == 0);
  ualarm(20'000, 0);
  loop.turn(Clock::now() + 30s);
  CHECK(handled);
  sigaction(SIGALRM, &before, nullptr);
}

TEST_CASE("loop: does so too where the fine wait is not there or is refused") {
  for (const uint32_t answer : {uint32_t(ENOSYS), uint32_t(EPERM)}) {
    Seen seen;
    bool forbidden = false;
    std::thread([&] {  // a filter lives as long as its thread
      forbidden = forbid_epoll_pwait2(answer);
      if (forbidden) seen = exercise();
    })
        .join();
    REQUIRE(forbidden);
    check(seen);
  }
}

}  // namespace hvd
