// The rarely taken half: the operation in words, and since when it waits.
#include "runtime/engine/status_writer.h"

#include <algorithm>

#include "collectives/shared_memory/describe.h"

namespace hvd {

void StatusWriter::write_text(const Operation& operation) {
  kind_ = operation.kind;
  type_ = operation.result.type;
  count_ = operation.result.count;
  name_ = operation.name;
  const std::string text = describe(operation);
  const size_t length = std::min(text.size(), size_t{StatusPage::kNameBytes - 1});
  for (size_t i = 0; i < length; ++i) page_.operation[i].store(text[i], kStore);
  page_.operation[length].store(0, kStore);
}

void StatusWriter::waiting(TimePoint now) {
  if (page_.since_ns.load(std::memory_order_relaxed) != 0) return;
  open();
  const auto ns = std::chrono::nanoseconds(now.time_since_epoch()).count();
  page_.since_ns.store(ns, kStore);
  page_.lock.store(++lock_, std::memory_order_release);
}

}  // namespace hvd
