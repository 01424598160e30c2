// Signs of life on standard error.
#include "cli/pipe.h"

#include <unistd.h>

#include "tests/support/catch.h"
#include "tests/support/redirected.h"

namespace hvd {

TEST_CASE("pipe: a sign of life waits for no reader of standard error") {
  CHECK(waits_for_no_reader(give_sign_of_life));
}

TEST_CASE("pipe: no sign of life gets into the frames on standard output") {
  const TestPipe frames, words;
  for (const bool same : {true, false}) {
    const Redirected output(STDOUT_FILENO, frames.write);
    const Redirected error(STDERR_FILENO, same ? frames.write : words.write);
    give_sign_of_life();
  }
  CHECK(frames.unread() == 0);
  CHECK(words.unread() == 1);
}

}  // namespace hvd
