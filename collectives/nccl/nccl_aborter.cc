#include "collectives/nccl/nccl_aborter.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace hvd {
namespace {

constexpr int kLookAgainMs = 1;

}  // namespace

NcclAborter::NcclAborter(const NcclLibrary& nccl, const CudaDevice& device,
                         const NcclLimits& limits)
    : nccl_(nccl), device_(device), limits_(limits) {}

void NcclAborter::begin(std::vector<CUevent> program) {
  MutexLock lock(mutex_);
  if (step_ != Step::kNone) return;  // it is under way
  step_ = Step::kInNccl;
  program_ = std::move(program);
  program_through_ = false;
  waited_.begin(Clock::now());
}

void NcclAborter::be(Step step) {
  MutexLock lock(mutex_);
  step_ = step;
}

// NCCL goes back to the device that was current (src/group.cc since 2.23): to a thread without one
// that is the first, on which the CUDA runtime then makes a context for this rank.
void NcclAborter::run(const std::vector<ncclComm_t>& communicators) {
  if (!communicators.empty()) {
    std::optional<CudaDevice::Current> current;
    try {
      current.emplace(device_);
    } catch (const Error&) {  // it is aborted all the same
    }
    for (const ncclComm_t one : communicators) nccl_.ncclCommAbort(one);
    be(Step::kOnDevice);
    while (device_.is_busy()) poll(nullptr, 0, kLookAgainMs);
  }
  be(Step::kNone);
}

bool NcclAborter::is_waited_for() const {
  MutexLock lock(mutex_);
  return step_ != Step::kNone;
}

bool NcclAborter::is_program_through(const std::vector<CUevent>& program) const {
  try {
    return std::ranges::all_of(program, [&](CUevent event) { return device_.is_done(event); });
  } catch (const Error&) {  // it never will be: the device is lost
    return true;
  }
}

std::string NcclAborter::overdue() {
  MutexLock lock(mutex_);
  if (step_ == Step::kNone) return "";
  const TimePoint now = Clock::now();
  if (!program_through_ && is_program_through(program_)) {
    program_through_ = true;
    waited_.begin(now);
  }
  const auto limit = program_through_ ? limits_.abort : limits_.program;
  if (waited_.look(now) < limit) return "";
  const char* what = !program_through_ ? "NCCL was aborted, but its GPU was not through with the "
                                         "program's own work before that"
                     : step_ == Step::kInNccl
                         ? "NCCL did not end its abort"
                         : "NCCL was aborted, but its GPU did not come to an end of it";
  return what + (" within " + std::to_string(limit.count()) + " ms");
}

}  // namespace hvd
