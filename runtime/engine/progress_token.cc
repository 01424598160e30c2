// The sleeping half of the token.
#include "runtime/engine/progress_token.h"

#include <algorithm>

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
bool ProgressToken::sleep(Waiter& waiter) {
  word_.fetch_add(kWaiter, std::memory_order_acq_rel);
  bool taken = false;
  {
    MutexLock lock(mutex_);
    waiters_.push_back(&waiter);
    while (!(taken = try_for(waiter)) &&
           (waiter.done == nullptr || !waiter.done->load(std::memory_order_acquire)))
      waiter.wake.wait(mutex_);
    std::erase(waiters_, &waiter);
    // The flag is that of all urgent waiters: those that sleep do not set it again.
    if (waiter.done == nullptr &&
        std::ranges::find(waiters_, nullptr, &Waiter::done) == waiters_.end())
      word_.fetch_and(~kWanted, std::memory_order_acq_rel);
  }
  word_.fetch_sub(kWaiter, std::memory_order_acq_rel);
  return taken;
}

bool ProgressToken::try_for(const Waiter& waiter) {
  if (waiter.done != nullptr) {
    const bool leave_it = (word_.load(std::memory_order_acquire) & (kWatched | kWanted)) != 0;
    return !waiter.done->load(std::memory_order_acquire) && !leave_it && try_take();
  }
  if (try_take()) return true;
  word_.fetch_or(kWanted, std::memory_order_acq_rel);
  return try_take();
}

void ProgressToken::take_urgently() {
  Waiter waiter;
  sleep(waiter);
}

bool ProgressToken::take_unless(const std::atomic<bool>& done) {
  Waiter waiter{&done};
  return sleep(waiter);
}

// Who is woken for nothing, since it is done by now, lets go of the token once more.
void ProgressToken::wake_one() {
  MutexLock lock(mutex_);
  const auto urgent = std::ranges::find(waiters_, nullptr, &Waiter::done);
  if (urgent != waiters_.end())
    (*urgent)->wake.notify_one();
  else if (!waiters_.empty())
    waiters_.front()->wake.notify_one();
}

void ProgressToken::wake_done() {
  MutexLock lock(mutex_);
  for (Waiter* waiter : waiters_)
    if (waiter->done != nullptr && waiter->done->load(std::memory_order_acquire))
      waiter->wake.notify_one();
}

}  // namespace hvd
