#include "cli/loop.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
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

// To the microsecond where the kernel can (5.11, and no filter of system calls in the way): a
// stream that rests for 0.4 ms would rest for up to 1.4 ms by epoll_wait(), and its writer be
// blocked.
int Loop::wait(std::span<epoll_event> events, std::optional<TimePoint> deadline) {
  using namespace std::chrono;
  const auto left = deadline ? std::clamp<Clock::duration>(*deadline - Clock::now(), 0s, 1h) : 1h;
  const int room = int(events.size());
  if (fine_) {
    const auto whole = floor<std::chrono::seconds>(left);
    const timespec limit{whole.count(), duration_cast<nanoseconds>(left - whole).count()};
    const int count =
        epoll_pwait2(epoll_.get(), events.data(), room, deadline ? &limit : nullptr, nullptr);
    if (count >= 0 || (errno != ENOSYS && errno != EPERM)) return count;
    fine_ = false;
  }
  const int limit_ms = deadline ? int(ceil<milliseconds>(left).count()) : -1;
  return epoll_wait(epoll_.get(), events.data(), room, limit_ms);
}

bool Loop::pending() const {
  pollfd one{epoll_.get(), POLLIN, 0};
  return poll(&one, 1, 0) > 0;
}

void Loop::turn(std::optional<TimePoint> deadline) {
  epoll_event events[kEventsMax];
  int count = wait(events, deadline);
  // After SIGCONT deadlines have passed, and what came meanwhile has not been heard.
  if (count < 0) count = wait(events, Clock::now());
  for (int i = 0; i < count; ++i) {
    auto entry = entries_.find(int(uint32_t(events[i].data.u64)));
    if (entry == entries_.end() || entry->second.generation != events[i].data.u64 >> 32) continue;
    Handler handler = entry->second.handler;  // it may unwatch itself
    handler(events[i].events);
  }
}

}  // namespace hvd
