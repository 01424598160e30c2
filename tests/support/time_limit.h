// A case that waits for threads which never end if what it tests is broken.
#pragma once

#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace hvd {

// Where it lives longer than 90 s the whole test ends, and Catch2 says in which case: half a minute
// more than comes_about() takes, whose failure says more.
class TimeLimit {
 public:
  TimeLimit() {
    std::signal(SIGALRM, [](int) { std::abort(); });
    alarm(90);
  }
  ~TimeLimit() { alarm(0); }
  TimeLimit(const TimeLimit&) = delete;
};

}  // namespace hvd
