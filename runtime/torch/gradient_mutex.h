// The mutex under which autograd adds to a parameter's .grad, in each thread that runs backward().
//
// It lets go of it before it calls hooks: a hook that touches .grad takes it again.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace hvd {

class GradientMutex {
 public:
  explicit GradientMutex(const at::Tensor& parameter);
  // Nothing, where LibTorch calls hooks under it. There backward() in several threads must not go
  // beyond backward_passes_per_step: a pass too many adds to a .grad that others are done with.
  void lock() const;
  void unlock() const;

 private:
  const std::shared_ptr<torch::autograd::Node> accumulator_;  // held, else it is made per graph
};

}  // namespace hvd
