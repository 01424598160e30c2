// How a communicator of NCCL's is ended, with all that were split from it: on NCCL's thread, while
// the holder goes on answering the agent.
//
// Beside ncclCommAbort() nothing is called of NCCL. It waits for what it has launched (src/init.cc,
// commDestroySync), which comes to nothing, but behind the program's own work on the device; memory
// is the program's only once all of that has been done. The program's work takes the time that it
// takes, within a limit of its own. NCCL promises no time for the rest, nor for the call that it
// may be in before, so who owns this asks overdue(), and ends the process when there is a word: the
// thread cannot be taken back, and would hold up its end.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "collectives/nccl/cuda_device.h"
#include "collectives/nccl/nccl_library.h"
#include "collectives/nccl/nccl_limits.h"
#include "collectives/nccl/waited_for.h"
#include "runtime/base/mutex.h"

namespace hvd {

class NcclAborter {
 public:
  // All outlive it.
  NcclAborter(const NcclLibrary& nccl, const CudaDevice& device, const NcclLimits& limits);

  // Any thread: from now on it is waited for that all ranks leave, or for an abort. `program`:
  // behind these events, of the program's streams, is what is in the device's; they are there until
  // it is over. None: that is not known, and there is as much time as for that.
  void expect_leave();
  void begin(std::optional<std::vector<CUevent>> program);
  // NCCL's thread. The communicators are gone then; the first one is aborted first, and `late`,
  // which NCCL may set meanwhile, last.
  void run(const std::vector<ncclComm_t>& communicators, const ncclComm_t* late = nullptr);
  // The same: nothing more is waited for, whatever is begun.
  void be_over() { be(Step::kOver); }
  // Any thread: "NCCL did not end its abort within 5000 ms": what is over its limit; empty: nothing
  // is.
  std::string overdue();
  bool is_waited_for() const {
    const Step step = step_.load(std::memory_order_acquire);
    return step != Step::kNone && step != Step::kOver;
  }

 private:
  enum class Step : uint8_t { kNone, kLeaving, kOrdered, kInNccl, kOnDevice, kOver };
  void be(Step step);
  bool is_program_through() REQUIRES(mutex_);
  std::string words() const REQUIRES(mutex_);

  const NcclLibrary& nccl_;
  const CudaDevice& device_;
  const NcclLimits limits_;

  Mutex mutex_;
  std::atomic<Step> step_{Step::kNone};  // written with the mutex
  std::optional<std::vector<CUevent>> program_ GUARDED_BY(mutex_);
  bool program_through_ GUARDED_BY(mutex_) = false;  // and waited for since
  WaitedFor waited_ GUARDED_BY(mutex_);
};

}  // namespace hvd
