// The nets whose training steps are timed. step_ddp.py has the same ones.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>

namespace hvd {

// A net with its input, which is a buffer of it: loss() is one forward pass.
struct StepNet : torch::nn::Module {
  virtual at::Tensor loss() = 0;
};

// "mnist": the net of Horovod's pytorch_mnist.py, batch 64. "mlp": 1024-4096-4096-1024, 25 million
// parameters, batch 32. A number: 160 gradients of so many KB and next to no computation. Throws
// kInvalidArgument for another name.
std::shared_ptr<StepNet> make_step_net(const std::string& name);

}  // namespace hvd
