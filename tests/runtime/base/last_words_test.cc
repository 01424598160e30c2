// Words on standard error that nobody waits for.
#include "runtime/base/last_words.h"

#include <unistd.h>

#include <string>

#include "tests/support/catch.h"
#include "tests/support/redirected.h"

namespace hvd {

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

TEST_CASE("last words: who has no reader lives on") {
  TestPipe pipe;
  pipe.read.reset();
  const Redirected redirected(STDERR_FILENO, pipe.write);
  write_last_words("so\n", std::chrono::milliseconds(1));
}

}  // namespace hvd
