#include "tests/gpu_check/step_trace.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <vector>

#include "hvd/hvd.h"
#include "hvd/torch.h"

namespace hvd {
namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

constexpr int kLayers = 6;
constexpr int kUntraced = 2, kTraced = 4;  // steps
constexpr size_t kNameMax = 80;
// libkineto::ActivityType, whose header LibTorch does not install.
constexpr uint8_t kCopy = 3, kKernel = 5;

// Between two layers come products by a constant matrix, so that a bucket's sum is over long before
// the next one is ready: on a GPU that ranks share a sum takes about 10 ms, whatever its size.
struct Shape {
  int64_t rows, width;
  int products;

  explicit Shape(c10::Device device)
      : rows(device.is_cpu() ? 8 : 4096),
        width(device.is_cpu() ? 64 : 1024),
        products(device.is_cpu() ? 2 : 80) {}
};

class Training {
 public:
  explicit Training(c10::Device device)
      : shape_(device),
        input_(at::ones({shape_.rows, shape_.width}).to(device)),
        constant_(at::eye(shape_.width).to(device)) {
    torch::OrderedDict<std::string, at::Tensor> named;
    for (int layer = 0; layer < kLayers; ++layer) {
      weights_.push_back(at::eye(shape_.width).to(device).requires_grad_());
      named.insert("weight" + std::to_string(layer), weights_.back());
    }
    inner_ = std::make_unique<torch::optim::SGD>(weights_, torch::optim::SGDOptions(1e-6));
    optimizer_ = std::make_unique<DistributedOptimizer>(
        *inner_, named, DistributedOptimizerOptions{.bucket_bytes = weights_[0].nbytes()});
  }

  // Gradients are copied into their buckets in one, and lie there in the next.
  void steps(int count) {
    for (int step = 0; step < count; ++step) {
      optimizer_->zero_grad(step % 2 == 0);
      at::Tensor x = input_;
      for (const at::Tensor& weight : weights_) {
        x = x.matmul(weight);
        for (int i = 0; i < shape_.products; ++i) x = x.matmul(constant_);
      }
      x.mean().backward();
      optimizer_->step();
    }
    weights_[0][0][0].item<float>();  // until the device has done all of it
  }

 private:
  const Shape shape_;
  const at::Tensor input_, constant_;
  std::vector<at::Tensor> weights_;
  std::unique_ptr<torch::optim::SGD> inner_;
  std::unique_ptr<DistributedOptimizer> optimizer_;
};

std::string line_of(const profiler::KinetoEvent& event) {
  const auto us = [](uint64_t ns) { return std::to_string(static_cast<double>(ns) / 1e3); };
  return std::string(event.activityType() == kCopy ? "copy " : "kernel ") + us(event.startNs()) +
         " " + us(event.endNs()) + " " + event.name().substr(0, kNameMax);
}

}  // namespace

std::string trace_steps(c10::Device device) {
  Training training(device);
  training.steps(kUntraced);
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<ActivityType> activities = {ActivityType::CUDA};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  training.steps(kTraced);
  const auto traced = profiler::disableProfiler();
  const std::string mine = "rank " + std::to_string(rank()) + ": ";
  std::string lines =
      mine + std::to_string(kTraced) + " steps of " + std::to_string(kLayers) + " buckets\n";
  for (const profiler::KinetoEvent& event : traced->events())
    if (event.activityType() == kCopy || event.activityType() == kKernel)
      lines += mine + line_of(event) + "\n";
  return lines;
}

}  // namespace hvd
