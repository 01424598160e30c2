// What /proc says about one process.
#include "cli/agent/process_state.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "tests/support/catch.h"

using namespace hvd;

namespace {

// As this process itself sees it, with a signal's action and mask as `prepare` leaves them.
bool term_ends(const std::function<void()>& prepare) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGTERM, SIG_DFL);  // the test's own
    prepare();
    _exit(ends_by(SIGTERM, getpid()) ? 1 : 0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status) == 1;
}

void block(int signal) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, nullptr);
}

}  // namespace

TEST_CASE("process state: a signal ends whom it has nothing else to do with") {
  CHECK(term_ends([] {}));
  CHECK_FALSE(term_ends([] { signal(SIGTERM, SIG_IGN); }));
  CHECK_FALSE(term_ends([] { signal(SIGTERM, [](int) {}); }));
  CHECK_FALSE(term_ends([] { block(SIGTERM); }));
  CHECK(term_ends([] { block(SIGINT), signal(SIGHUP, SIG_IGN), signal(SIGALRM, [](int) {}); }));
}

TEST_CASE("process state: nobody is ended by a signal who is not there") {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  REQUIRE(waitpid(child, nullptr, 0) == child);
  CHECK_FALSE(ends_by(SIGTERM, child));
}
