// Keeps the status page: what this rank was doing last, for its agent.
//
// By the thread that called init() only. Plain stores and no clock: `since_ns` is 0 until the rank
// has really waited (about a millisecond); then waiting() notes when.
#pragma once

#include "collectives/communicator.h"
#include "runtime/base/deadline.h"
#include "runtime/base/status_page.h"

namespace hvd {

class StatusWriter {
 public:
  explicit StatusWriter(StatusPage& page) : page_(page) {}

  // `hash`: of all that has to agree on all ranks, and so of nearly all that is written; the same
  // operation again costs a few stores.
  void begin(Order order, uint64_t sequence, const Operation& operation, uint64_t hash) {
    open();
    page_.order.store(static_cast<uint32_t>(order), kStore);
    page_.sequence.store(sequence, kStore);
    if (hash != hash_ || operation.input.count != input_count_) write(operation, hash);
    close(Phase::kCollective);
  }
  // A wait of another kind: inside synchronize(), shutdown(), …
  void begin(Phase phase) {
    open();
    close(phase);
  }
  void waiting(TimePoint now);
  void end() { begin(Phase::kComputing); }
  void set_step(uint64_t step) { page_.step.store(step, std::memory_order_relaxed); }
  void set_epoch(uint32_t epoch) { page_.epoch.store(epoch, std::memory_order_relaxed); }

 private:
  void write(const Operation& operation, uint64_t hash);
  void open() { page_.lock.store(++lock_, std::memory_order_relaxed); }
  void close(Phase phase) {
    page_.since_ns.store(0, kStore);
    page_.phase.store(static_cast<uint32_t>(phase), kStore);
    page_.lock.store(++lock_, std::memory_order_release);
  }

  // Release, so that whoever reads a field sees that `lock` was odd before; free on x86.
  static constexpr auto kStore = std::memory_order_release;

  StatusPage& page_;
  uint32_t lock_ = 0;
  // Of the operation in the page.
  uint64_t hash_ = 0;
  size_t input_count_ = ~size_t{0};  // none yet
};

}  // namespace hvd
