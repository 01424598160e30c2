// Ends a communicator of NCCL's, in a thread of its own: the holder goes on answering the agent.
//
// Beside ncclCommAbort() nothing is called of NCCL. It waits for what it has launched (src/init.cc,
// commDestroySync), which comes to nothing, but behind the program's own work on the device; memory
// is the program's only once all of that has been done. The program's work takes the time that it
// takes, within a limit of its own. NCCL promises no time for the rest, so whoever owns this asks
// overdue(), and ends the process when there is a word: the thread cannot be taken back, and would
// hold up its end.
#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "collectives/nccl/cuda_device.h"
#include "collectives/nccl/nccl_library.h"
#include "collectives/nccl/nccl_limits.h"
#include "collectives/nccl/waited_for.h"

namespace hvd {

class NcclAborter {
 public:
  // Begins. All outlive it; the communicator is gone once it is over. `program`: behind these
  // events, of the program's streams, is what is in the device's.
  NcclAborter(const NcclLibrary& nccl, const CudaDevice& device, ncclComm_t communicator,
              const NcclLimits& limits, std::vector<CUevent> program = {});
  ~NcclAborter() = default;  // joins, so is_over() has to be true, or what is waited for to end

  bool is_over() const { return step_.load(std::memory_order_acquire) == Step::kOver; }
  // "NCCL did not end its abort within 5000 ms": what is over its limit; empty: nothing is.
  std::string overdue();
  // Until one or the other: true, it is over.
  bool wait();

 private:
  enum class Step : uint8_t { kInNccl, kOnDevice, kOver };
  void run();
  bool is_program_through() const;

  const NcclLibrary& nccl_;
  const CudaDevice& device_;
  const ncclComm_t communicator_;
  const NcclLimits limits_;
  const std::vector<CUevent> program_;
  bool program_through_ = false;  // and waited for since; the owner's
  WaitedFor waited_;
  std::atomic<Step> step_{Step::kInNccl};
  std::jthread thread_;  // the last: it uses the others
};

}  // namespace hvd
