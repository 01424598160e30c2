#include "cli/agent/death_watch.h"

#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <ctime>
#include <system_error>

#include "cli/agent/process_state.h"
#include "runtime/base/start_thread.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

// Between hint and look: its other tasks drop the memory first, so that it is not us who frees it.
constexpr auto kFirstLook = 500us;
constexpr auto kNextLook = 1ms;
// Of a process that lives on although its socket has ended or its engine thread is gone.
constexpr auto kSuspicion = 20ms;
// After a message from some rank: as long as another one may be about to take its mutex.
constexpr auto kPoked = 2s;
constexpr size_t kWordsMax = 127;  // beside our own; more ranks are told by their pidfd alone

std::atomic<uint32_t>* word_of(pthread_mutex_t* mutex) {
  static_assert(offsetof(pthread_mutex_t, __data.__lock) == 0 && sizeof mutex->__data.__lock == 4,
                "glibc's robust mutex begins with its futex");
  return reinterpret_cast<std::atomic<uint32_t>*>(&mutex->__data.__lock);
}

// Held by a living thread: the value to sleep on, marked as waited for. Else nothing.
std::optional<uint32_t> mark_waited(std::atomic<uint32_t>& word) {
  uint32_t value = word.load(std::memory_order_acquire);
  while ((value & FUTEX_TID_MASK) != 0 && (value & FUTEX_OWNER_DIED) == 0) {
    if ((value & FUTEX_WAITERS) != 0 ||
        word.compare_exchange_weak(value, value | FUTEX_WAITERS, std::memory_order_acq_rel))
      return value | FUTEX_WAITERS;
  }
  return std::nullopt;
}

timespec monotonic(TimePoint when) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch());
  return {.tv_sec = ns.count() / 1'000'000'000, .tv_nsec = ns.count() % 1'000'000'000};
}

}  // namespace

DeathWatch::DeathWatch(Loop& loop, Found found)
    : loop_(loop), found_(std::move(found)), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) throw std::system_error(errno, std::generic_category(), "eventfd");
  loop_.watch(event_.get(), EPOLLIN, [this](uint32_t) { deliver(); });
}

DeathWatch::~DeathWatch() {
  loop_.unwatch(event_.get());
  thread_.request_stop();
  tell();
}

void DeathWatch::start() {
  if (thread_.joinable()) return;
  thread_ = start_thread("the death watch's", [this](const std::stop_token& stop) { run(stop); });
  pthread_setname_np(thread_.native_handle(), "death-watch");
}

void DeathWatch::tell() {
  changes_.fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &changes_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void DeathWatch::watch(int slot, pid_t pid, std::shared_ptr<void> memory, pthread_mutex_t* life) {
  forget(slot);
  {
    MutexLock lock(mutex_);
    Watch made;
    made.slot = slot;
    made.pid = pid;
    made.memory = std::move(memory);
    made.word = word_of(life);
    watches_.push_back(std::move(made));
    poked_ = Clock::now();
  }
  start();
  tell();
}

void DeathWatch::suspect(int slot, pid_t pid) {
  {
    MutexLock lock(mutex_);
    auto at = std::find_if(watches_.begin(), watches_.end(),
                           [&](const Watch& watch) { return watch.slot == slot; });
    if (at == watches_.end()) {
      at = watches_.insert(watches_.end(), Watch{});
      at->slot = slot;
      at->pid = pid;
    }
    at->suspected = true;
  }
  start();
  tell();
}

void DeathWatch::forget(int slot) {
  MutexLock lock(mutex_);
  std::erase_if(watches_, [&](const Watch& watch) { return watch.slot == slot; });
  std::erase_if(reports_, [&](const Report& report) { return report.slot == slot; });
}

void DeathWatch::poke() {
  {
    MutexLock lock(mutex_);
    poked_ = Clock::now();
  }
  if (thread_.joinable()) tell();
}

void DeathWatch::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    const uint32_t changes = changes_.load(std::memory_order_acquire);
    std::vector<Watch> watches;  // copies: a look at /proc must not hold up the loop
    TimePoint poked;
    {
      MutexLock lock(mutex_);
      watches = watches_;
      poked = poked_;
    }
    for (Watch& watch : watches) {
      const std::optional<Report> made = examine(watch, Clock::now());
      MutexLock lock(mutex_);
      keep(watch);
      if (!made) continue;
      reports_.push_back(*made);
      const uint64_t one = 1;
      if (write(event_.get(), &one, sizeof one) < 0) continue;  // full: it is readable already
    }
    sleep(watches, changes, poked);
  }
}

// One step of one watch: hint, look, report.
std::optional<DeathWatch::Report> DeathWatch::examine(Watch& watch, TimePoint now) {
  if (watch.reported) return std::nullopt;
  if (!watch.hinted) {
    const bool marked = watch.word != nullptr &&
                        (watch.word->load(std::memory_order_acquire) & FUTEX_OWNER_DIED) != 0;
    if (!marked && !watch.suspected) return std::nullopt;
    watch.hinted = now;
    watch.look = now + kFirstLook;
  }
  if (now < watch.look) return std::nullopt;
  if (all_tasks_exiting(watch.pid)) {
    watch.reported = true;
    const Finding how = exits_well(watch.pid) ? Finding::kEndedWell : Finding::kExiting;
    return Report{watch.slot, watch.pid, how};
  }
  if (now - *watch.hinted < kSuspicion) {
    watch.look = now + kNextLook;
    return std::nullopt;
  }
  // It lives without its engine thread: look now and then, and leave its end to the pidfd.
  watch.look = now + 1s;
  if (!watch.suspected) return std::nullopt;
  watch.suspected = false;
  watch.hinted.reset();
  return Report{watch.slot, watch.pid, Finding::kAlive};
}

// Puts what examine() found into the list, unless the loop has taken the watch away meanwhile.
void DeathWatch::keep(const Watch& seen) {
  for (Watch& watch : watches_) {
    if (watch.slot != seen.slot || watch.pid != seen.pid || watch.word != seen.word) continue;
    const bool alive = watch.suspected && watch.hinted && !seen.hinted;  // reported as kAlive
    watch.hinted = seen.hinted;
    watch.look = seen.look;
    watch.reported = seen.reported;
    if (alive) watch.suspected = false;
  }
}

void DeathWatch::sleep(const std::vector<Watch>& watches, uint32_t changes, TimePoint poked) {
  std::array<futex_waitv, kWordsMax + 1> waits{};
  size_t count = 0;
  auto add = [&](std::atomic<uint32_t>& word, uint32_t value, uint32_t flags) {
    waits[count++] = {.val = value,
                      .uaddr = reinterpret_cast<uintptr_t>(&word),
                      .flags = FUTEX_32 | flags,
                      .__reserved = 0};
  };
  add(changes_, changes, FUTEX_PRIVATE_FLAG);
  const TimePoint now = Clock::now();
  TimePoint until = now + 1h;
  for (const Watch& watch : watches) {
    if (watch.reported) continue;
    if (watch.hinted) {
      until = std::min(until, watch.look);
      continue;
    }
    if (watch.word == nullptr || count == waits.size()) continue;
    if (const auto value = mark_waited(*watch.word)) {
      add(*watch.word, *value, 0);
    } else if ((watch.word->load(std::memory_order_acquire) & FUTEX_OWNER_DIED) != 0) {
      until = now;
    } else if (now - poked < kPoked) {
      // Not taken yet, and taking wakes nobody: look again, ever more seldom.
      until = std::min(until, now + std::max<Clock::duration>(2ms, (now - poked) / 2));
    }
  }
  if (until <= now) return;
  const timespec limit = monotonic(until);
  const long slept = syscall(SYS_futex_waitv, waits.data(), count, 0, &limit, CLOCK_MONOTONIC);
  // Older kernels lack it, and filters of system calls refuse it in other ways.
  if (slept >= 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT) return;
  syscall(SYS_futex, &changes_, FUTEX_WAIT_BITSET_PRIVATE, changes, &limit, nullptr,
          FUTEX_BITSET_MATCH_ANY);
}

void DeathWatch::deliver() {
  uint64_t count;
  if (read(event_.get(), &count, sizeof count) < 0) return;
  std::vector<Report> reports;
  {
    MutexLock lock(mutex_);
    reports.swap(reports_);
  }
  for (const Report& report : reports) found_(report.slot, report.pid, report.finding);
}

}  // namespace hvd
