// Residual networks as in "Deep Residual Learning for Image Recognition" (He et al., 2015).
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

struct ResNetImpl : torch::nn::Module {
  // `blocks` per stage; `bottleneck`: blocks of three convolutions instead of two.
  ResNetImpl(const std::vector<int>& blocks, bool bottleneck, int64_t classes = 1000);
  torch::Tensor forward(torch::Tensor x);  // [count, 3, height, width] to [count, classes]

  torch::nn::Sequential stem{nullptr}, stages{nullptr};
  torch::nn::Linear classifier{nullptr};
};
TORCH_MODULE(ResNet);

// "resnet18", "resnet34" or "resnet50"; throws std::invalid_argument for another name.
ResNet make_resnet(const std::string& name);
