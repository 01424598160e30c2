// What a communicator was given and has not resolved: operations in the order of calls, linked
// through themselves. The holder of the progress token only.
#pragma once

#include <atomic>
#include <cstdint>

#include "collectives/communicator.h"
#include "collectives/describe.h"

namespace hvd {

class OperationQueue {
 public:
  // `seed`: whose operations these are, for their hashes.
  explicit OperationQueue(uint64_t seed) : seed_(seed) {}

  bool empty() const { return oldest_ == nullptr; }
  Operation* oldest() const { return oldest_; }
  uint64_t started() const { return started_; }
  // Before the first one: it is number `sequence` + 1.
  void start_at(uint64_t sequence) { started_ = sequence; }

  // Numbers it and puts it last. False once all is over: then it has failed, untouched.
  bool push(Operation& operation) {
    operation.next = nullptr;
    operation.stage = 0;
    operation.sequence = ++started_;
    if (over_) {
      operation.outcome.store(Outcome::kFailedUntouched, std::memory_order_release);
      return false;
    }
    operation.hash = hash_of(operation, seed_);
    (youngest_ != nullptr ? youngest_->next : oldest_) = &operation;
    youngest_ = &operation;
    return true;
  }
  // The oldest one has its outcome: from here on it is its owner's again, and may be gone.
  void resolve(Outcome outcome) {
    Operation& operation = *oldest_;
    oldest_ = operation.next;
    if (oldest_ == nullptr) youngest_ = nullptr;
    operation.outcome.store(outcome, std::memory_order_release);
  }
  void be_over() { over_ = true; }

 private:
  const uint64_t seed_;
  Operation* oldest_ = nullptr;
  Operation* youngest_ = nullptr;
  uint64_t started_ = 0;
  bool over_ = false;
};

}  // namespace hvd
