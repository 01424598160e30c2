// Keeps the status page: what this rank was doing last, for its agent.
//
// By the thread that called init() only. Plain stores and no clock: `since_ns` is 0 until the rank
// has really waited (about a millisecond); then waiting() notes when.
#pragma once

#include <string>
#include <string_view>

#include "collectives/communicator.h"
#include "runtime/base/deadline.h"
#include "runtime/base/status_page.h"

namespace hvd {

enum class Order : uint32_t { kProgram = 0, kLog = 1, kList = 2 };  // StatusPage::order

class StatusWriter {
 public:
  explicit StatusWriter(StatusPage& page) : page_(page) {}

  void begin(Order order, uint64_t sequence, const Operation& operation) {
    open();
    page_.order.store(static_cast<uint32_t>(order), kStore);
    page_.sequence.store(sequence, kStore);
    page_.bytes.store(operation.result.bytes(), kStore);
    if (!is_written(operation)) write_text(operation);
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
  bool is_written(const Operation& operation) const {
    return operation.kind == kind_ && operation.result.type == type_ &&
           operation.result.count == count_ && operation.name == name_;
  }
  void write_text(const Operation& operation);
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
  // What the page's text says.
  OperationKind kind_ = OperationKind::kBarrier;
  DataType type_ = DataType::kFloat32;
  size_t count_ = ~size_t{0};
  std::string name_;
};

}  // namespace hvd
