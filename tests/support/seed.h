// Where a test's random numbers begin: anew in every run, or as HVD_TEST_SEED says.
#pragma once

#include <random>

#include "runtime/base/env.h"

namespace hvd {

// Whoever asks says it with a failure, as the assignment that replays the run.
inline unsigned random_seed() {
  return static_cast<unsigned>(
      env::get_integer("HVD_TEST_SEED").value_or(std::random_device{}() % 1'000'000));
}

}  // namespace hvd
