// Floats in the memory of a rank's device, filled and read in a stream of the "program".
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/device_backend.h"
#include "runtime/engine/engine.h"
#include "tests/collectives/nccl/device_ranks.h"

namespace hvd {

// A stream as the program's framework would have one.
class ProgramStream {
 public:
  explicit ProgramStream(int rank);
  ~ProgramStream();
  ProgramStream(const ProgramStream&) = delete;
  ProgramStream& operator=(const ProgramStream&) = delete;

  CUstream get() const { return stream_; }
  // Queued: the values are taken when they are copied, and live until drain().
  void write(void* to, std::vector<float> values);
  // All that is in the stream has been done.
  void drain();
  std::vector<float> read(const void* from, size_t count);

 private:
  CudaDevice& device_;
  CUstream stream_ = nullptr;
  std::vector<std::unique_ptr<std::vector<float>>> written_;
};

class DeviceTensor {
 public:
  // Of `count` times this value, as soon as the stream comes to it.
  DeviceTensor(int rank, ProgramStream& stream, size_t count, float value);
  ~DeviceTensor() { stream_.drain(); }  // of what still fills it
  DeviceTensor(const DeviceTensor&) = delete;
  DeviceTensor& operator=(const DeviceTensor&) = delete;

  void* data() const { return memory_.get(); }
  size_t count() const { return count_; }
  // A Sum over all ranks.
  std::shared_ptr<Work> sum_async(Engine& engine, const std::string& name);
  std::shared_ptr<Work> allreduce_async(Engine& engine, const std::string& name,
                                        const Reduction& reduction);
  // Behind its last reduction, without a wait of the host but for this.
  std::vector<float> values();

 private:
  ProgramStream& stream_;
  DeviceBackend& backend_;
  const size_t count_;
  const std::shared_ptr<std::byte> memory_;
  std::shared_ptr<DeviceEvents> events_;
};

}  // namespace hvd
