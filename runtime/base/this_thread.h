// Which thread runs this, by a number that no other thread of the process has, also once this one
// has ended. std::thread::id and the kernel's number are given to later threads.
#pragma once

#include <atomic>
#include <cstdint>

namespace hvd {

inline uint64_t this_thread_number() {
  static std::atomic<uint64_t> given{0};
  thread_local const uint64_t number = given.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

}  // namespace hvd
