#include "runtime/base/process_mark.h"

#include <pthread.h>

#include <atomic>

#include "runtime/base/error.h"

namespace hvd {
namespace {

std::atomic<uint64_t> forks{0};  // between the process that watched first and this one

void watch_forks() {
  static const int watching =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  if (watching != 0)
    throw Error(ErrorCode::kUnavailable, "no memory for the handler of forked children");
}

}  // namespace

ProcessMark::ProcessMark() {
  watch_forks();
  forks_ = forks.load(std::memory_order_relaxed);
}

bool ProcessMark::in_child() const noexcept {
  return forks.load(std::memory_order_relaxed) != forks_;
}

}  // namespace hvd
