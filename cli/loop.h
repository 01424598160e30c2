// A single-threaded event loop: descriptors with handlers, and one deadline per turn.
#pragma once

#include <sys/epoll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>

#include "runtime/base/deadline.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

class Loop {
 public:
  using Handler = std::function<void(uint32_t events)>;

  Loop();
  // With EPOLLONESHOT the descriptor is silent after each event until rearm(); without it a closed
  // peer (EPOLLHUP, which no mask can switch off) would spin while its bytes cannot be taken.
  void watch(int fd, uint32_t events, Handler handler);
  void rearm(int fd, uint32_t events);
  void unwatch(int fd);  // before the descriptor is closed
  // Waits for events until the deadline, or a signal, and handles what is there by then.
  void turn(std::optional<TimePoint> deadline);
  bool pending() const;  // whether the next turn has something to handle at once

 private:
  struct Entry {
    uint32_t generation;  // an event for a number that was closed and given out again is dropped
    Handler handler;
  };
  static constexpr size_t kEventsMax = 64;  // of one turn
  uint64_t key(int fd) const;
  int wait(std::span<epoll_event> events, std::optional<TimePoint> deadline);

  UniqueFd epoll_;
  bool fine_ = true;  // epoll_pwait2() works here
  uint32_t generation_ = 0;
  std::unordered_map<int, Entry> entries_;
};

}  // namespace hvd
