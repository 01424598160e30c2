#include "runtime/base/process_mark.h"

#include <pthread.h>

#include <atomic>

#include "runtime/base/error.h"

namespace hvd {
namespace {

std::atomic<uint64_t> forks{0};  // between the process that watched first and this one

}  // namespace

void call_in_forked_children(void (*handler)()) {
  if (pthread_atfork(nullptr, nullptr, handler) != 0)
    throw Error(ErrorCode::kUnavailable, "no memory for the handler of forked children");
}

ProcessMark::ProcessMark() {
  // Once it has thrown, the next one tries again.
  [[maybe_unused]] static const bool counted =
      (call_in_forked_children([] { forks.fetch_add(1, std::memory_order_relaxed); }), true);
  forks_ = forks.load(std::memory_order_relaxed);
}

bool ProcessMark::in_child() const noexcept {
  return forks.load(std::memory_order_relaxed) != forks_;
}

}  // namespace hvd
