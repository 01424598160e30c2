// The sleeping half of the token.
#include "runtime/engine/progress_token.h"

namespace hvd {

bool ProgressToken::take_or_kick() {
  uint32_t word = word_.load(std::memory_order_relaxed);
  uint32_t next;
  do {
    next = word | ((word & kHeld) != 0 ? kKicked : kHeld);
  } while (!word_.compare_exchange_weak(word, next, std::memory_order_acq_rel,
                                        std::memory_order_relaxed));
  return (word & kHeld) == 0;
}

// A waiter counts itself before its last look: who lets go, or completes something, after that look
// sees the count and takes the mutex, which the waiter holds until it sleeps.
void ProgressToken::take_urgently() {
  word_.fetch_add(kWaiter, std::memory_order_acq_rel);
  {
    MutexLock lock(mutex_);
    while (!try_take()) {
      word_.fetch_or(kWanted, std::memory_order_acq_rel);
      if (try_take()) break;
      wake_.wait(mutex_);
    }
    // Under the mutex: another urgent waiter sets it again before it sleeps.
    word_.fetch_and(~kWanted, std::memory_order_acq_rel);
  }
  word_.fetch_sub(kWaiter, std::memory_order_acq_rel);
}

bool ProgressToken::take_unless(const std::atomic<bool>& done) {
  word_.fetch_add(kWaiter, std::memory_order_acq_rel);
  bool taken = false;
  {
    MutexLock lock(mutex_);
    while (!taken && !done.load(std::memory_order_acquire)) {
      const bool leave_it = (word_.load(std::memory_order_acquire) & (kWatched | kWanted)) != 0;
      taken = !leave_it && try_take();
      if (!taken) wake_.wait(mutex_);
    }
  }
  word_.fetch_sub(kWaiter, std::memory_order_acq_rel);
  return taken;
}

void ProgressToken::wake_waiters() {
  {
    MutexLock lock(mutex_);
  }
  wake_.notify_all();
}

}  // namespace hvd
