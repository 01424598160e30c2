// Device memory of the kind that NCCL can move without a copy of its own, where the machine allows
// that.
//
// NCCL takes it away at once when it is freed, whatever is to touch it still (src/allocator.cc),
// and a program's gradients lie there: who lets go of one knows of no stream that still reads it.
// So a thread of its own waits for all that the device was given until then. What is registered
// with a communicator is held by who has it registered until it no longer is.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collectives/nccl/cuda_device.h"
#include "collectives/nccl/nccl_library.h"
#include "collectives/nccl/nccl_limits.h"
#include "runtime/base/mutex.h"
#include "runtime/base/process_mark.h"

namespace hvd {

class NcclMemory {
 public:
  // Both outlive it, and it all its memory.
  NcclMemory(const CudaDevice& device, const NcclLibrary& nccl, const NcclLimits& limits = {});
  ~NcclMemory();

  // Any thread. Throws kUnavailable, with both figures, when the device has no room, also not when
  // all that was let go of is back: it waits for the device then, as long as the limits say. Up to
  // 2.25 NCCL takes 512 MB at least where GPUs have multicast (src/init.cc, ncclMemAlloc).
  std::shared_ptr<std::byte> allocate(size_t bytes) EXCLUDES(mutex_);
  // The same of memory as any other, which is not to be registered.
  std::shared_ptr<std::byte> allocate_plain(size_t bytes) EXCLUDES(mutex_);
  // Any thread: does it lie in what allocate() gave out, and was not let go of?
  bool has(const void* data) const EXCLUDES(mutex_);
  // The process is in exit(): nothing is freed any more, for CUDA may be called "during process
  // shutdown" no longer (CUDA C++ Programming Guide, "Initialization"). What is being freed is
  // waited for, as long as the limits say.
  void end_with_process() EXCLUDES(mutex_);

 private:
  struct Memory {
    std::byte* base = nullptr;
    bool plain = false;
  };
  // Null, and why; `before`: NCCL's last words.
  std::byte* take(size_t bytes, bool plain, const std::string& before, std::string& why) const;
  std::shared_ptr<std::byte> allocate(size_t bytes, bool plain) EXCLUDES(mutex_);
  void let_go(Memory memory) noexcept EXCLUDES(mutex_);
  void free_when_done(const std::stop_token& stop) EXCLUDES(mutex_);
  void free_now(const std::vector<Memory>& memories, const std::stop_token& stop) const;
  void wait_for_free() EXCLUDES(mutex_);

  const CudaDevice& device_;
  const NcclLibrary& nccl_;
  const NcclLimits limits_;
  const ProcessMark process_;

  mutable Mutex mutex_;
  std::condition_variable_any changed_;
  std::map<const std::byte*, size_t> given_out_ GUARDED_BY(mutex_);  // bytes, by their begin
  std::vector<Memory> let_go_ GUARDED_BY(mutex_);
  bool freeing_ GUARDED_BY(mutex_) = false;
  std::atomic<bool> process_ends_{false};

  std::jthread thread_;
};

}  // namespace hvd
