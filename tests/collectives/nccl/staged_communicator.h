// Host tensors over a communicator for device memory: each operation is copied to the device on a
// stream of the "program", and back, ordered by events alone. So that one suite serves all
// backends.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/nccl/cuda_device.h"

namespace hvd {

class StagedCommunicator final : public Communicator {
 public:
  // `device` outlives it. `control` is what `inner` was made over.
  StagedCommunicator(CudaDevice& device, std::unique_ptr<Communicator> control,
                     std::unique_ptr<Communicator> inner);
  ~StagedCommunicator() override;

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void start(Operation& operation) override;
  bool progress() override;
  bool idle() const override { return twins_.empty() && inner_->idle() && control_->idle(); }
  void close() override;
  bool drained() const override { return inner_->drained() && control_->drained(); }
  void fail_rest() override;
  void abort() noexcept override { inner_->abort(); }
  std::vector<int> missing_ranks() const override { return inner_->missing_ranks(); }
  uint64_t entered() const override { return inner_->entered(); }

 private:
  struct Twin {
    Operation* original = nullptr;
    Operation operation;
    CUdeviceptr result = 0, input = 0;
    void* gathered = nullptr;  // where an allgather's result goes on the host
    size_t gathered_bytes = 0;
    CudaDevice::Event ready, done;
  };

  CUdeviceptr copy_in(const void* data, size_t bytes);
  CUdeviceptr allocate(size_t bytes);
  void* allocate_gathered(Twin& twin, std::span<const uint64_t> counts);
  void bring_back(Twin& twin);
  void free_memory(Twin& twin);

  CudaDevice& device_;
  const std::unique_ptr<Communicator> control_, inner_;
  CUstream program_ = nullptr;
  std::deque<std::unique_ptr<Twin>> twins_;
};

}  // namespace hvd
