// A rank with tensors on its GPU, as a program has them: through libhvd and its plug-in, their
// memory filled and read by the CUDA driver's copies. One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/nccl/cuda_device.h"
#include "runtime/context.h"

namespace hvd {

// Of the variable that names the driver's library for libhvd, too.
std::string cuda_library();

class DeviceRank {
 public:
  // After init(). Throws Error, by libhvd's words, when that GPU cannot be used.
  explicit DeviceRank(int ordinal);

  Engine& engine() const { return context_->engine(); }
  DeviceBackend& backend() const { return backend_; }
  const CudaDriver& driver() const { return driver_; }
  const CudaDevice& device() const { return device_; }
  // Where the program's own work is.
  CUstream stream() const { return device_.stream(); }

  std::shared_ptr<std::byte> allocate(size_t bytes) const { return backend_.allocate(bytes); }
  void write(void* to, const void* from, size_t bytes);
  void read(void* to, const void* from, size_t bytes);

  // An operation over all ranks that is under way.
  struct Started {
    std::shared_ptr<DeviceEvents> events;
    std::shared_ptr<Work> work;
  };
  // Behind what is in the stream.
  Started start(std::unique_ptr<Submission> submission);
  // Until the device has done it. Throws what Work::wait() does.
  static void finish(const Started& operation);
  // Both; what comes into the stream from then on sees the result.
  void run(std::unique_ptr<Submission> submission);

 private:
  void copy(const void* to, const void* from, size_t bytes);

  const std::shared_ptr<Context> context_;
  DeviceBackend& backend_;
  const CudaDriver driver_;
  CudaDevice device_;
};

// A Sum of floats, for run().
std::unique_ptr<Submission> make_sum(const std::string& name,
                                     const std::shared_ptr<std::byte>& memory, size_t count);

}  // namespace hvd
