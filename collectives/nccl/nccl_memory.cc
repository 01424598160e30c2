#include "collectives/nccl/nccl_memory.h"

#include <poll.h>
#include <pthread.h>

#include <iterator>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/base/start_thread.h"

namespace hvd {
namespace {

constexpr int kAskAgainMs = 10;

}  // namespace

NcclMemory::NcclMemory(const CudaDevice& device, const NcclLibrary& nccl, const NcclLimits& limits)
    : device_(device),
      nccl_(nccl),
      limits_(limits),
      thread_(start_silent_thread("the one that frees device memory",
                                  [this](const std::stop_token& stop) { free_when_done(stop); })) {}

NcclMemory::~NcclMemory() = default;

std::byte* NcclMemory::take(size_t bytes, bool plain, const std::string& before,
                            std::string& why) const {
  if (plain) {
    CUdeviceptr memory = 0;
    const CUresult result = device_.driver().cuMemAlloc(&memory, bytes);
    if (result == CUDA_SUCCESS) return reinterpret_cast<std::byte*>(memory);
    why = device_.driver().text_of(result);
    return nullptr;
  }
  void* memory = nullptr;
  const ncclResult_t result = nccl_.ncclMemAlloc(&memory, bytes);
  if (result == ncclSuccess) return static_cast<std::byte*>(memory);
  why = nccl_.text_of(result, nullptr, before);
  return nullptr;
}

std::shared_ptr<std::byte> NcclMemory::allocate(size_t bytes) { return allocate(bytes, false); }

std::shared_ptr<std::byte> NcclMemory::allocate_plain(size_t bytes) {
  return allocate(bytes, true);
}

std::shared_ptr<std::byte> NcclMemory::allocate(size_t bytes, bool plain) {
  const CudaDevice::Current current(device_);
  const std::string before = nccl_.last_words(nullptr);
  std::string why;
  std::byte* memory = take(bytes, plain, before, why);
  if (memory == nullptr) {
    wait_for_free();
    memory = take(bytes, plain, before, why);
  }
  if (memory != nullptr) {
    if (!plain) {
      MutexLock lock(mutex_);
      given_out_[memory] = bytes;
    }
    return {memory, [this, plain](std::byte* base) { let_go({base, plain}); }};
  }
  size_t free = 0, total = 0;
  const bool known = device_.driver().cuMemGetInfo(&free, &total) == CUDA_SUCCESS;
  throw Error(
      ErrorCode::kUnavailable,
      "GPU " + std::to_string(device_.ordinal()) + " has no room for " + std::to_string(bytes) +
          " bytes more" +
          (known ? " (" + std::to_string(free) + " of " + std::to_string(total) + " are free)"
                 : std::string()) +
          ": " + why);
}

bool NcclMemory::has(const void* data) const {
  const auto* at = static_cast<const std::byte*>(data);
  MutexLock lock(mutex_);
  auto next = given_out_.upper_bound(at);
  return next != given_out_.begin() && at < std::prev(next)->first + std::prev(next)->second;
}

// A forked child has no device, and finds the mutex as it was.
void NcclMemory::let_go(Memory memory) noexcept {
  if (process_.in_child()) return;
  MutexLock lock(mutex_);
  given_out_.erase(memory.base);
  if (process_ends_) return;
  let_go_.push_back(memory);
  changed_.notify_all();
}

// The analysis does not follow a wait's lock.
void NcclMemory::free_when_done(const std::stop_token& stop) NO_THREAD_SAFETY_ANALYSIS {
  pthread_setname_np(pthread_self(), "hvd-memory");
  std::unique_lock<Mutex> lock(mutex_);
  while (
      changed_.wait(lock, stop, [this]() NO_THREAD_SAFETY_ANALYSIS { return !let_go_.empty(); })) {
    const std::vector<Memory> taken = std::exchange(let_go_, {});
    freeing_ = true;
    lock.unlock();
    free_now(taken, stop);
    lock.lock();
    freeing_ = false;
    changed_.notify_all();
    if (process_ends_) return;
  }
}

// While the program captures a graph on the device nobody may wait for all that it does (CUDA C++
// Programming Guide, "Prohibited and Unhandled Operations"), and the try ends the capture. Who
// stops meanwhile leaves the memory to the end of the process.
void NcclMemory::free_now(const std::vector<Memory>& memories, const std::stop_token& stop) const {
  try {
    const CudaDevice::Current current(device_);
    while (device_.driver().cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) {
      if (stop.stop_requested()) return;
      poll(nullptr, 0, kAskAgainMs);
    }
    for (const Memory& memory : memories) {
      if (process_ends_) return;
      if (memory.plain)
        device_.driver().cuMemFree(reinterpret_cast<CUdeviceptr>(memory.base));
      else
        nccl_.ncclMemFree(memory.base);
    }
  } catch (const Error&) {
    // The device is lost, and all that was on it.
  }
}

void NcclMemory::end_with_process() NO_THREAD_SAFETY_ANALYSIS {
  if (process_.in_child()) return;
  process_ends_ = true;
  thread_.request_stop();
  std::unique_lock<Mutex> lock(mutex_);
  let_go_.clear();
  changed_.wait_for(lock, limits_.exit, [this]() NO_THREAD_SAFETY_ANALYSIS { return !freeing_; });
}

void NcclMemory::wait_for_free() NO_THREAD_SAFETY_ANALYSIS {
  std::unique_lock<Mutex> lock(mutex_);
  changed_.wait_for(lock, limits_.free,
                    [this]() NO_THREAD_SAFETY_ANALYSIS { return let_go_.empty() && !freeing_; });
}

}  // namespace hvd
