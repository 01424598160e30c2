// The device of a rank: its primary context, which the program's framework shares, one stream for
// everything that moves between GPUs, events to order it by, and kernels.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "collectives/nccl/cuda_driver.h"
#include "collectives/nccl/cuda_kernels.h"
#include "runtime/base/mutex.h"
#include "runtime/base/process_mark.h"

namespace hvd {

class CudaDevice {
 public:
  // Gives back its event.
  struct GiveBack {
    CudaDevice* device;
    void operator()(CUevent_st* event) const { device->give_back(event); }
  };
  using Event = std::unique_ptr<CUevent_st, GiveBack>;

  // Of those that are visible. Throws kUnavailable. `driver` outlives it.
  CudaDevice(const CudaDriver& driver, int ordinal);
  ~CudaDevice();  // once nothing of it is used any more
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const CudaDriver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  std::string name() const;  // "NVIDIA H100 80GB HBM3"
  // Of the highest priority: what other ranks wait for comes first.
  CUstream stream() const { return stream_; }
  const CudaKernels& kernels() const { return *kernels_; }
  // While it lives, what the calling thread calls of CUDA is about this device, then about the one
  // that was current before; and it does not count against a graph that the program captures
  // meanwhile, which calls of any thread else may end (CUDA Driver API,
  // cuThreadExchangeStreamCaptureMode).
  class Current {
   public:
    explicit Current(const CudaDevice& device);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const CudaDriver& driver_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // and then the thread's own
  };

  // Any thread. An event without time stamps; unrecorded, or recorded by an earlier user, for whom
  // it counted as done.
  Event take_event();
  // Any thread: `event` is done when all that is in the stream by now is.
  void record(CUevent event, CUstream stream) const;
  // Any thread: what comes into the stream from now on begins after the event.
  void wait(CUstream stream, CUevent event) const;
  // Any thread: once all that is in stream() by now has been done.
  void copy(void* to, const void* from, size_t bytes) const;
  // Any thread. Throws kUnsupported where what is called there becomes a part of a CUDA graph, and
  // not done now.
  void check_not_captured(CUstream stream) const;
  // Throws kUnavailable when what comes before it has failed.
  bool is_done(CUevent event) const;
  bool is_busy() const noexcept;  // with what is in stream(); false, too, when it is lost
  // Of take_event(), for who cannot hold an Event.
  void give_back(CUevent event);
  // Any thread: the process is in exit(), where CUDA may be called no longer (CUDA C++ Programming
  // Guide, "Initialization").
  void end_with_process() { process_ends_ = true; }
  bool process_ends() const { return process_ends_.load(std::memory_order_relaxed); }

 private:
  const CudaDriver& driver_;
  const int ordinal_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  std::optional<CudaKernels> kernels_;  // from the constructor to the destructor
  const ProcessMark process_;
  std::atomic<bool> process_ends_{false};
  Mutex mutex_;
  std::vector<CUevent> spare_ GUARDED_BY(mutex_);
};

}  // namespace hvd
