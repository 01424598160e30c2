// The rarely taken half: the operation in words, and since when it waits.
#include "runtime/engine/status_writer.h"

#include <string>

#include "collectives/describe.h"
#include "runtime/base/utf8.h"

namespace hvd {

void StatusWriter::write(const Operation& operation, uint64_t hash) {
  hash_ = hash;
  input_count_ = operation.input.count;
  const bool gathers = operation.kind == OperationKind::kAllgather;
  page_.bytes.store(gathers ? operation.input.bytes() : operation.result.bytes(), kStore);
  const std::string text = describe(operation);
  const std::string_view shown = head_of(text, StatusPage::kNameBytes - 1);
  for (size_t i = 0; i < shown.size(); ++i) page_.operation[i].store(shown[i], kStore);
  page_.operation[shown.size()].store(0, kStore);
}

void StatusWriter::waiting(TimePoint now) {
  if (page_.since_ns.load(std::memory_order_relaxed) != 0) return;
  open();
  const auto ns = std::chrono::nanoseconds(now.time_since_epoch()).count();
  page_.since_ns.store(ns, kStore);
  page_.lock.store(++lock_, std::memory_order_release);
}

}  // namespace hvd
