#include "collectives/nccl/nccl_aborter.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/base/start_thread.h"

namespace hvd {
namespace {

constexpr int kLookAgainMs = 1;

}  // namespace

NcclAborter::NcclAborter(const NcclLibrary& nccl, const CudaDevice& device, ncclComm_t communicator,
                         const NcclLimits& limits, std::vector<CUevent> program)
    : nccl_(nccl),
      device_(device),
      communicator_(communicator),
      limits_(limits),
      program_(std::move(program)) {
  try {
    thread_ = start_thread("the one that aborts NCCL", [this](const std::stop_token&) { run(); });
  } catch (const Error&) {
    run();  // without a limit rather than not at all
  }
}

// NCCL goes back to the device that was current (src/group.cc since 2.23): to a thread without one
// that is the first, on which the CUDA runtime then makes a context for this rank.
void NcclAborter::run() {
  std::optional<CudaDevice::Current> current;
  try {
    current.emplace(device_);
  } catch (const Error&) {  // it is aborted all the same
  }
  nccl_.ncclCommAbort(communicator_);
  step_.store(Step::kOnDevice, std::memory_order_release);
  while (device_.is_busy()) poll(nullptr, 0, kLookAgainMs);
  step_.store(Step::kOver, std::memory_order_release);
}

bool NcclAborter::is_program_through() const {
  try {
    return std::ranges::all_of(program_, [&](CUevent event) { return device_.is_done(event); });
  } catch (const Error&) {  // it never will be: the device is lost
    return true;
  }
}

std::string NcclAborter::overdue() {
  const Step step = step_.load(std::memory_order_acquire);
  if (step == Step::kOver) return "";
  const TimePoint now = Clock::now();
  if (!program_through_ && is_program_through()) {
    program_through_ = true;
    waited_.begin(now);
  }
  const auto limit = program_through_ ? limits_.abort : limits_.program;
  if (waited_.look(now) < limit) return "";
  const char* what = !program_through_ ? "NCCL was aborted, but its GPU was not through with the "
                                         "program's own work before that"
                     : step == Step::kInNccl
                         ? "NCCL did not end its abort"
                         : "NCCL was aborted, but its GPU did not come to an end of it";
  return what + (" within " + std::to_string(limit.count()) + " ms");
}

bool NcclAborter::wait() {
  while (!is_over() && overdue().empty()) poll(nullptr, 0, kLookAgainMs);
  return is_over();
}

}  // namespace hvd
