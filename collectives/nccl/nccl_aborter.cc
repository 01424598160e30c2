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

void NcclAborter::expect_leave() {
  MutexLock lock(mutex_);
  if (step_ != Step::kNone) return;
  step_ = Step::kLeaving;
  waited_.begin(Clock::now());
}

void NcclAborter::begin(std::optional<std::vector<CUevent>> program) {
  MutexLock lock(mutex_);
  if (step_ != Step::kNone && step_ != Step::kLeaving) return;
  step_ = Step::kOrdered;
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
void NcclAborter::run(const std::vector<ncclComm_t>& communicators, const ncclComm_t* late) {
  if (!communicators.empty()) {
    std::optional<CudaDevice::Current> current;
    try {
      current.emplace(device_);
    } catch (const Error&) {  // it is aborted all the same
    }
    be(Step::kInNccl);
    for (const ncclComm_t one : communicators) nccl_.ncclCommAbort(one);
    if (late != nullptr && *late != nullptr) nccl_.ncclCommAbort(*late);
    be(Step::kOnDevice);
    while (device_.is_busy()) poll(nullptr, 0, kLookAgainMs);
  }
  be(Step::kNone);
}

bool NcclAborter::is_program_through() {
  try {
    return program_ &&
           std::ranges::all_of(*program_, [&](CUevent event) { return device_.is_done(event); });
  } catch (const Error&) {  // it never will be: the device is lost
    return true;
  }
}

std::string NcclAborter::words() const {
  switch (step_.load()) {
    case Step::kLeaving:
      return "NCCL did not let go of its communicator";
    case Step::kOrdered:
      return "a call of NCCL's or CUDA's did not return, so that NCCL was not aborted";
    case Step::kInNccl:
      return "NCCL did not end its abort";
    default:
      return "NCCL was aborted, but its GPU did not come to an end of it";
  }
}

std::string NcclAborter::overdue() {
  if (!is_waited_for()) return "";
  MutexLock lock(mutex_);
  if (!is_waited_for()) return "";
  const TimePoint now = Clock::now();
  const bool leaves = step_ == Step::kLeaving;
  if (!leaves && !program_through_ && is_program_through()) {
    program_through_ = true;
    waited_.begin(now);
  }
  const auto limit = leaves             ? limits_.leave + limits_.abort
                     : program_through_ ? limits_.abort
                                        : limits_.program;
  if (waited_.look(now) < limit) return "";
  const std::string what = leaves || program_through_
                               ? words()
                               : "NCCL was aborted, but its GPU was not through with the program's "
                                 "own work before that";
  return what + " within " + std::to_string(limit.count()) + " ms";
}

}  // namespace hvd
