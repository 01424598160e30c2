// The same inside a training step: 4 MB of gradients, and little besides to compute.
#include <hvd/hvd.h>
#include <hvd/torch.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <memory>

#include "tests/benchmark/death_rounds.h"

namespace {

struct Trainer {
  torch::nn::Linear net{1024, 1024};
  torch::optim::SGD sgd{net->parameters(), torch::optim::SGDOptions(1e-4)};
  hvd::DistributedOptimizer optimizer{sgd, net->named_parameters()};
  at::Tensor input = at::ones({1, 1024});

  void step() {
    optimizer.zero_grad();
    net(input).sum().backward();
    optimizer.step();
  }
};

std::function<void()> train() {
  return [trainer = std::make_shared<Trainer>()] { trainer->step(); };
}

constexpr hvd::DeathWork kWorks[] = {{"step", train}};

}  // namespace

int main(int argc, char** argv) { return hvd::measure_deaths(argc, argv, kWorks); }
