// Ends a communicator of NCCL's, in a thread of its own: the holder goes on answering the agent.
//
// Beside ncclCommAbort() nothing is called of NCCL. What is still in the stream, behind the
// program's own work, comes to nothing there, but memory is the program's only then. NCCL promises
// no time for either, so whoever owns this asks overdue(), and ends the process when there is a
// word: the thread cannot be taken back, and would hold up its end.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "collectives/nccl/cuda_device.h"
#include "collectives/nccl/nccl_library.h"
#include "runtime/base/deadline.h"

namespace hvd {

class NcclAborter {
 public:
  // Begins. All outlive it; the communicator is gone once it is over.
  NcclAborter(const NcclLibrary& nccl, const CudaDevice& device, ncclComm_t communicator,
              std::chrono::milliseconds limit);
  ~NcclAborter() = default;  // joins, so is_over() has to be true, or what is waited for to end

  bool is_over() const { return step_.load(std::memory_order_acquire) == Step::kOver; }
  // What has not ended within the limit; null: it has, or there is time left.
  const char* overdue() const;
  // Until one or the other: true, it is over.
  bool wait() const;

 private:
  enum class Step : uint8_t { kInNccl, kOnDevice, kOver };
  void run();

  const NcclLibrary& nccl_;
  const CudaDevice& device_;
  const ncclComm_t communicator_;
  const TimePoint latest_;
  std::atomic<Step> step_{Step::kInNccl};
  std::jthread thread_;  // the last: it uses the others
};

}  // namespace hvd
