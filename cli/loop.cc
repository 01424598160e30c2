#include "cli/loop.h"

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace hvd {

Loop::Loop() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw std::system_error(errno, std::generic_category(), "epoll_create1");
}

uint64_t Loop::key(int fd) const {
  return uint64_t(entries_.at(fd).generation) << 32 | uint32_t(fd);
}

void Loop::watch(int fd, uint32_t events, Handler handler) {
  entries_[fd] = {++generation_, std::move(handler)};
  epoll_event event{events, {.u64 = key(fd)}};
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
}

void Loop::rearm(int fd, uint32_t events) {
  epoll_event event{events, {.u64 = key(fd)}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Loop::unwatch(int fd) {
  if (entries_.erase(fd)) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

void Loop::turn(std::optional<TimePoint> deadline) {
  int timeout_ms = -1;
  if (deadline) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - Clock::now()).count();
    timeout_ms = int(std::clamp<int64_t>(left, 0, 3'600'000));
  }
  epoll_event events[64];
  int count = epoll_wait(epoll_.get(), events, 64, timeout_ms);
  for (int i = 0; i < count; ++i) {
    auto entry = entries_.find(int(uint32_t(events[i].data.u64)));
    if (entry == entries_.end() || entry->second.generation != events[i].data.u64 >> 32) continue;
    Handler handler = entry->second.handler;  // it may unwatch itself
    handler(events[i].events);
  }
}

}  // namespace hvd
