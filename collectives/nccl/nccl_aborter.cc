#include "collectives/nccl/nccl_aborter.h"

#include <poll.h>

#include <optional>

#include "runtime/base/start_thread.h"

namespace hvd {
namespace {

constexpr int kLookAgainMs = 1;

}  // namespace

NcclAborter::NcclAborter(const NcclLibrary& nccl, const CudaDevice& device, ncclComm_t communicator,
                         std::chrono::milliseconds limit)
    : nccl_(nccl), device_(device), communicator_(communicator), latest_(Clock::now() + limit) {
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

const char* NcclAborter::overdue() const {
  const Step step = step_.load(std::memory_order_acquire);
  if (step == Step::kOver || Clock::now() < latest_) return nullptr;
  return step == Step::kInNccl ? "NCCL did not end its abort"
                               : "NCCL was aborted, but its GPU was not through with the program's "
                                 "own work before that";
}

bool NcclAborter::wait() const {
  while (!is_over() && overdue() == nullptr) poll(nullptr, 0, kLookAgainMs);
  return is_over();
}

}  // namespace hvd
