// The device backend over CUDA and NCCL, and the door by which a process opens it.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "collectives/device_backend.h"
#include "collectives/nccl/cuda_device.h"
#include "collectives/nccl/cuda_driver.h"
#include "collectives/nccl/nccl_library.h"
#include "collectives/nccl/nccl_limits.h"
#include "collectives/nccl/nccl_memory.h"

namespace hvd {

class NcclBackend final : public DeviceBackend {
 public:
  // Throws kUnavailable: no driver, no such device, no NCCL, or too old ones.
  explicit NcclBackend(const DeviceOptions& options, const NcclLimits& limits = {});

  int ordinal() const override { return device_.ordinal(); }
  std::string description() const override { return description_; }
  std::unique_ptr<Communicator> make_communicator(Peers& peers, const std::string& name,
                                                  Communicator& control) override;
  std::shared_ptr<std::byte> allocate(size_t bytes) override { return memory_.allocate(bytes); }
  std::shared_ptr<std::byte> allocate_plain(size_t bytes) override {
    return memory_.allocate_plain(bytes);
  }
  bool has(const void* data) const override { return memory_.has(data); }
  void* take_event() override { return device_.take_event().release(); }
  void give_back(void* event) noexcept override { device_.give_back(static_cast<CUevent>(event)); }
  void record(void* event, void* stream) override {
    device_.check_not_captured(static_cast<CUstream>(stream));
    device_.record(static_cast<CUevent>(event), static_cast<CUstream>(stream));
  }
  void wait(void* stream, void* event) override {
    device_.check_not_captured(static_cast<CUstream>(stream));
    device_.wait(static_cast<CUstream>(stream), static_cast<CUevent>(event));
  }
  void cast(std::span<const Cast> casts, double factor, void* stream) override;
  bool can_cast() const override { return device_.kernels().are_there(); }
  void end_with_process() {
    device_.end_with_process();
    memory_.end_with_process();
  }

 private:
  const NcclLimits limits_;
  const CudaDriver driver_;
  const NcclLibrary nccl_;
  CudaDevice device_;
  NcclMemory memory_{device_, nccl_, limits_};
  std::string description_;
};

}  // namespace hvd
