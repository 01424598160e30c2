// A job that waits for ever: rank 0 never joins the allreduce in which all others are blocked.
//
// The others print "blocked" before they go in. A signal ends it.
#include <unistd.h>

#include <array>
#include <cstdio>

#include "hvd/hvd.h"

int main() {
  try {
    hvd::init();
    if (hvd::rank() == 0) {
      pause();
      return 0;
    }
    std::puts("blocked");
    std::fflush(stdout);
    std::array<float, 1024> data{};
    hvd::allreduce_(std::span(data));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "blocked_rank: %s\n", error.what());
    return 1;
  }
}
