// The right to move this rank's communicators: one thread at a time has it.
//
// One word, so that taking and leaving cost one atomic exchange each. The token is never held by a
// thread that sleeps. Who cannot have it either leaves a note (a kick: the holder serves once more
// before it lets go), or sleeps here until the token is free: who lets go wakes one of these, who
// completes something those that wait for it. One waiting thread may be the watcher: it sleeps on
// the doorbell, without the token, for all that wait.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <vector>

#include "runtime/base/mutex.h"

namespace hvd {

class ProgressToken {
 public:
  bool try_take() {
    uint32_t word = word_.load(std::memory_order_relaxed);
    while ((word & kHeld) == 0)
      if (word_.compare_exchange_weak(word, word | kHeld, std::memory_order_acq_rel,
                                      std::memory_order_relaxed))
        return true;
    return false;
  }

  // Takes it (true), or asks the holder to serve once more before it lets go (false).
  bool take_or_kick();

  // False: somebody kicked; serve and try again. `watching`: the caller becomes the watcher.
  bool try_release(bool watching = false) {
    uint32_t word = word_.load(std::memory_order_relaxed);
    do {
      if ((word & kKicked) != 0) {
        word_.fetch_and(~kKicked, std::memory_order_acq_rel);
        return false;
      }
    } while (!word_.compare_exchange_weak(word, (word & ~kHeld) | (watching ? kWatched : 0),
                                          std::memory_order_acq_rel, std::memory_order_relaxed));
    if (word >= kWaiter) [[unlikely]]
      if (((word & kWatched) == 0 && !watching) || (word & kWanted) != 0) wake_one();
    return true;
  }

  // The watcher is awake again. It does not hold the token by that.
  void stop_watching() { word_.fetch_and(~kWatched, std::memory_order_acq_rel); }

  // Sleeps until the token is taken. `urgent`: before a waiting holder goes on waiting.
  void take_urgently();
  // Sleeps until the token is taken (true) or `done` is set (false; the token may be free now, and
  // nobody else was woken for it). While somebody watches it is left alone.
  bool take_unless(const std::atomic<bool>& done);
  // After setting one `done` or several.
  void completed() {
    if (word_.fetch_add(0, std::memory_order_acq_rel) >= kWaiter) wake_done();
  }

  bool wanted() const { return (word_.load(std::memory_order_relaxed) & kWanted) != 0; }
  // Who finds nobody watching may write what a watcher has read.
  bool watched() const { return (word_.load(std::memory_order_acquire) & kWatched) != 0; }
  bool has_waiters() const { return waiters() > 0; }
  uint32_t waiters() const { return word_.load(std::memory_order_relaxed) / kWaiter; }

 private:
  // On its thread's stack, and in the list while it is there.
  struct Waiter {
    const std::atomic<bool>* done = nullptr;  // null: urgent
    std::condition_variable_any wake = {};
  };
  void wake_one();
  void wake_done();
  // Until this thread has taken the token, or is done.
  bool sleep(Waiter& waiter);
  bool try_for(const Waiter& waiter);

  static constexpr uint32_t kHeld = 1, kKicked = 2, kWatched = 4, kWanted = 8, kWaiter = 16;

  std::atomic<uint32_t> word_{0};  // flags, and the number of waiters times kWaiter
  Mutex mutex_;                    // pairs a waiter's last look with who wakes it
  std::vector<Waiter*> waiters_ GUARDED_BY(mutex_);  // who came first is first
};

}  // namespace hvd
