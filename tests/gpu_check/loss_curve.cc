#include "tests/gpu_check/loss_curve.h"

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include <bit>
#include <cstdio>
#include <span>
#include <vector>

#include "hvd/hvd.h"
#include "hvd/torch.h"

namespace hvd {
namespace {

constexpr int64_t kInputs = 24, kHidden = 128, kRows = 16;
constexpr int kSteps = 20;

// Numbers without a pattern that matters here, the same on all ranks and devices.
at::Tensor numbers(std::vector<int64_t> shape, int seed) {
  const at::Tensor flat = at::arange(c10::multiply_integers(shape), at::kFloat);
  return at::sin(flat * 12.9898f + static_cast<float>(seed)).reshape(shape);
}

struct Net {
  std::vector<at::Tensor> parameters;
  torch::OrderedDict<std::string, at::Tensor> named;

  explicit Net(c10::Device device) {
    add(device, "first", numbers({kHidden, kInputs}, 1) * 0.2f);
    add(device, "first_bias", at::zeros({kHidden}));
    add(device, "second", numbers({1, kHidden}, 2) * 0.1f);
    add(device, "second_bias", at::zeros({1}));
  }

  at::Tensor loss(int part, int step) const {
    const c10::Device device = parameters[0].device();
    const at::Tensor input = numbers({kRows, kInputs}, 10 + 2 * step + part);
    const at::Tensor wanted = (input.mean(1, true) * 4 + 0.5).to(device);
    const at::Tensor hidden = at::tanh(at::linear(input.to(device), parameters[0], parameters[1]));
    return (at::linear(hidden, parameters[2], parameters[3]) - wanted).pow(2).mean();
  }

 private:
  void add(c10::Device device, const std::string& name, const at::Tensor& value) {
    parameters.push_back(value.to(device).requires_grad_());
    named.insert(name, parameters.back());
  }
};

torch::optim::SGDOptions options_of_sgd() { return torch::optim::SGDOptions(0.01).momentum(0.9); }

double value_of(const at::Tensor& loss) { return loss.item<float>(); }

std::vector<double> losses_of_ranks(c10::Device device,
                                    const DistributedOptimizerOptions& options) {
  Net net(device);
  torch::optim::SGD inner(net.parameters, options_of_sgd());
  DistributedOptimizer optimizer(inner, net.named, options);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = net.loss(rank(), step);
    loss.backward();
    optimizer.step();
    losses.push_back(value_of(loss));
  }
  allreduce_(std::span(losses), {.op = ReduceOp::kSum});  // of two, in any order the same
  return losses;
}

std::vector<double> losses_of_one(c10::Device device) {
  Net net(device);
  torch::optim::SGD optimizer(net.parameters, options_of_sgd());
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    double sum = 0;
    for (int part = 0; part < size(); ++part) {
      const at::Tensor loss = net.loss(part, step);
      loss.backward();
      sum += value_of(loss);
    }
    for (at::Tensor& parameter : net.parameters) parameter.mutable_grad().mul_(1.0 / size());
    optimizer.step();
    losses.push_back(sum);
  }
  return losses;
}

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

}  // namespace

std::string check_loss_curve(c10::Device device, const DistributedOptimizerOptions& options) {
  if (size() > 2)
    throw Error(
        ErrorCode::kUnsupported,
        "the loss curve of one process is that of two ranks, not of " + std::to_string(size()));
  const std::vector<double> ranks = losses_of_ranks(device, options), one = losses_of_one(device);
  for (int step = 0; step < kSteps; ++step)
    if (const auto at = static_cast<size_t>(step);
        std::bit_cast<uint64_t>(ranks[at]) != std::bit_cast<uint64_t>(one[at]))
      throw Error(ErrorCode::kInternal, "they part in step " + std::to_string(step) + ": " +
                                            text_of(ranks[at]) + " of ranks, " + text_of(one[at]) +
                                            " of one process");
  const std::string said = std::to_string(kSteps) + " losses, from " + text_of(one.front()) +
                           " to " + text_of(one.back());
  if (!(one.back() < one.front() / 2))
    throw Error(ErrorCode::kInternal, "nothing is learnt: " + said);
  return said + ": those of one process, bit for bit\n";
}

}  // namespace hvd
