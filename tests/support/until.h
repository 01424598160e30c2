// Waits for what the rest of a test is to do, on any thread, a minute at most.
#pragma once

#include <poll.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "runtime/base/deadline.h"

namespace hvd {

// False: it has not come about. For code under test that lets no exception out.
template <class Done>
bool comes_about(Done&& done) {
  const TimePoint begin = Clock::now();
  while (!done()) {
    const auto waited = Clock::now() - begin;
    if (waited > std::chrono::seconds(60)) return false;
    if (waited < std::chrono::milliseconds(1)) std::this_thread::yield();
    if (waited >= std::chrono::milliseconds(1)) poll(nullptr, 0, 1);
  }
  return true;
}

// Throws when it does not come about.
template <class Done>
void until(std::string_view what, Done&& done) {
  if (!comes_about(done))
    throw std::runtime_error("the test waited 60 s in vain until " + std::string(what));
}

}  // namespace hvd
