// Small nets with the awkward properties that data-parallel training has to survive.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace hvd::nets {

// loss() of one rank's part of one step; the same values whoever computes it.
struct Net : torch::nn::Module {
  virtual at::Tensor loss(int part, int step) = 0;
  // Its own parameters were replaced by those of these names.
  virtual void take_own() {}
};

at::Tensor random(int part, int step, at::IntArrayRef sizes);

using MakeNet = std::function<std::shared_ptr<Net>()>;
using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

// Every net begins with the same parameters, whichever thread makes it.
// As Module::to(), which cannot change a tensor's kind to or from LibTorch's private device. Linear
// layers, and parameters of the net itself.
void move_to(Net& net, at::Device device);

MakeNet mlp();            // three layers
MakeNet channels_last();  // convolutions, batch norm
MakeNet unused();         // a layer used by some parts in some steps, and one never used
MakeNet shared();         // one weight used three times
MakeNet listed_twice();   // a layer with two names, used by both
MakeNet mixed();          // parameters of four types

MakeOptimizer sgd(double lr = 0.05, double momentum = 0.9);
MakeOptimizer adamw();

}  // namespace hvd::nets
