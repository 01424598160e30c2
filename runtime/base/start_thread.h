// Starts threads, and says which limit is in the way when there can be no more.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/base/error.h"

namespace hvd {

// Of a thread or process that was refused with EAGAIN: the limit that was met, with its value, and
// what to do.
std::string thread_shortage();

// Of `what` that found no memory: the limit on memory with its value, if there is one.
std::string memory_shortage(const std::string& what);

// `whose` is for the message: "the engine's". Throws kUnavailable.
template <class Body>
std::jthread start_thread(const std::string& whose, Body&& body) {
  try {
    return std::jthread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::kUnavailable, "cannot start " + whose + " thread: " +
                                             error.code().message() + "; " + thread_shortage());
  }
}

// The same for threads beside a program's own, for which signals are: this one gets none.
template <class Body>
std::jthread start_silent_thread(const std::string& whose, Body&& body) {
  struct NoSignals {
    sigset_t before = {};
    NoSignals() {
      sigset_t all;
      sigfillset(&all);
      pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  };
  const NoSignals no_signals;
  return start_thread(whose, std::forward<Body>(body));
}

}  // namespace hvd
