// The blocks and stages of residual networks.
#include "examples/resnet.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/pooling.h>

#include <map>
#include <stdexcept>
#include <utility>

namespace nn = torch::nn;

namespace {

nn::Conv2d convolution(int64_t in, int64_t out, int64_t size, int64_t stride = 1) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
}

// Two 3x3 convolutions, or 1x1, 3x3, 1x1 with four times as many channels at the end; the input is
// added to the result.
struct BlockImpl : nn::Module {
  BlockImpl(int64_t in, int64_t width, int64_t stride, bool bottleneck) {
    const int64_t out = bottleneck ? 4 * width : width;
    if (bottleneck) {
      body = nn::Sequential(convolution(in, width, 1), nn::BatchNorm2d(width), nn::ReLU(),
                            convolution(width, width, 3, stride), nn::BatchNorm2d(width),
                            nn::ReLU(), convolution(width, out, 1), nn::BatchNorm2d(out));
    } else {
      body = nn::Sequential(convolution(in, width, 3, stride), nn::BatchNorm2d(width), nn::ReLU(),
                            convolution(width, out, 3), nn::BatchNorm2d(out));
    }
    register_module("body", body);
    if (stride == 1 && in == out) return;
    shortcut = nn::Sequential(convolution(in, out, 1, stride), nn::BatchNorm2d(out));
    register_module("shortcut", shortcut);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::relu(body->forward(x) + (shortcut ? shortcut->forward(x) : x));
  }
  nn::Sequential body{nullptr}, shortcut{nullptr};
};
TORCH_MODULE(Block);

}  // namespace

ResNetImpl::ResNetImpl(const std::vector<int>& blocks, bool bottleneck, int64_t classes) {
  stem = nn::Sequential(convolution(3, 64, 7, 2), nn::BatchNorm2d(64), nn::ReLU(),
                        nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)));
  stages = nn::Sequential();
  int64_t in = 64, width = 64;
  for (size_t stage = 0; stage < blocks.size(); ++stage, width *= 2) {
    for (int block = 0; block < blocks[stage]; ++block) {
      const int64_t stride = stage > 0 && block == 0 ? 2 : 1;
      stages->push_back(Block(in, width, stride, bottleneck));
      in = bottleneck ? 4 * width : width;
    }
  }
  classifier = nn::Linear(in, classes);
  register_module("stem", stem);
  register_module("stages", stages);
  register_module("classifier", classifier);
}

torch::Tensor ResNetImpl::forward(torch::Tensor x) {
  return classifier(stages->forward(stem->forward(x)).mean(c10::IntArrayRef{2, 3}));
}

ResNet make_resnet(const std::string& name) {
  static const std::map<std::string, std::pair<std::vector<int>, bool>> kKnown = {
      {"resnet18", {{2, 2, 2, 2}, false}},
      {"resnet34", {{3, 4, 6, 3}, false}},
      {"resnet50", {{3, 4, 6, 3}, true}},
  };
  const auto found = kKnown.find(name);
  if (found == kKnown.end())
    throw std::invalid_argument("unknown model " + name + "; try resnet18, resnet34 or resnet50");
  return ResNet(found->second.first, found->second.second);
}
