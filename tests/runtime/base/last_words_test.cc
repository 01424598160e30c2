// Words on standard error that nobody waits for.
#include "runtime/base/last_words.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <string>

#include "tests/support/catch.h"
#include "tests/support/redirected.h"

namespace hvd {
namespace {

int pipe_to_empty = -1, alarms_before = 0;

void on_alarm(int) {
  char page[4096];
  const int errno_before = errno;
  if (--alarms_before != 0) return;  // once: what comes then is to stay
  while (read(pipe_to_empty, page, sizeof page) > 0) {
  }
  errno = errno_before;
}

}  // namespace

TEST_CASE("last words: as many as there is room for, and nobody waits for a reader") {
  const TestPipe pipe;
  const std::string many(1 << 20, 'w');  // more than a pipe takes
  const Redirected redirected(STDERR_FILENO, pipe.write);
  write_last_words("so\n");
  CHECK(pipe.unread() == 3);
  alarm(20);  // the end of a process that waits after all
  write_last_words(many);
  const int full = pipe.unread();
  alarm(0);
  CHECK(full > 4096);
  CHECK(waits_for_no_reader([] { write_last_words("so\n"); }));
  CHECK(waits_for_no_reader([] { write_last_words("so\n", std::chrono::milliseconds(1)); }));
}

TEST_CASE("last words: a signal does not end the patience") {
  const TestPipe pipe;
  pipe.fill();
  fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
  pipe_to_empty = pipe.read.get();
  alarms_before = 3;
  struct sigaction action{}, before{};
  action.sa_handler = on_alarm;
  sigaction(SIGALRM, &action, &before);
  {
    const Redirected redirected(STDERR_FILENO, pipe.write);
    const itimerval often{{0, 5000}, {0, 5000}}, never{};
    setitimer(ITIMER_REAL, &often, nullptr);
    write_last_words("so\n", std::chrono::minutes(1));
    setitimer(ITIMER_REAL, &never, nullptr);
  }
  sigaction(SIGALRM, &before, nullptr);
  CHECK(pipe.unread() == 3);
}

TEST_CASE("last words: who has no reader lives on") {
  TestPipe pipe;
  pipe.read.reset();
  const Redirected redirected(STDERR_FILENO, pipe.write);
  write_last_words("so\n", std::chrono::milliseconds(1));
}

}  // namespace hvd
