// One rank of a training whose result has to equal that of one process, bit for bit; run by
// mnist_parity_test.py under hvdrun.
//
// 50 steps of the MNIST network on real digits, dropout off. Every rank checks that it has the same
// bits as the others; rank 0 then trains alone on all parts, in rank order, and compares. In
// float64 the larger batch as one is compared, too. Prints "equal" or what differs.
#include <ATen/Parallel.h>
#include <hvd/hvd.h>
#include <hvd/torch.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "examples/digits.h"
#include "examples/mnist_net.h"

namespace {

constexpr int kSteps = 50;
constexpr int64_t kBatch = 16;

struct Trainer {
  Trainer(const Digits& digits_, torch::ScalarType type_) : digits(digits_), type(type_) {
    torch::manual_seed(42);
    model = MnistNet();
    model->to(type);
    model->eval();  // no dropout, and the network has nothing else that cares
    sgd = std::make_unique<torch::optim::SGD>(model->parameters(),
                                              torch::optim::SGDOptions(0.02).momentum(0.5));
  }

  // The mean loss of parts [from, to) of one step; parts are of one size.
  torch::Tensor loss(int step, int from, int to) {
    const int64_t begin = (int64_t{step} * hvd::size() + from) * kBatch;
    torch::Tensor index = torch::arange(begin, begin + (to - from) * kBatch);
    index = index.remainder(digits.images.size(0));
    return torch::nll_loss(model(digits.images.index_select(0, index).to(type)),
                           digits.targets.index_select(0, index));
  }

  // As the ranks do, part by part in rank order.
  void step_over_parts(int step) {
    std::vector<torch::Tensor> sums;
    for (int part = 0; part < hvd::size(); ++part) {
      sgd->zero_grad();
      loss(step, part, part + 1).backward();
      for (size_t i = 0; i < model->parameters().size(); ++i) {
        const torch::Tensor gradient = model->parameters()[i].grad();
        if (part == 0) {
          sums.push_back(gradient.clone());
        } else {
          sums[i] += gradient;
        }
      }
    }
    for (size_t i = 0; i < sums.size(); ++i)
      model->parameters()[i].mutable_grad() =
          sums[i] * torch::scalar_tensor(1.0 / hvd::size(), sums[i].options());
    sgd->step();
  }

  void step_over_larger_batch(int step) {
    sgd->zero_grad();
    loss(step, 0, hvd::size()).backward();
    sgd->step();
  }

  const Digits& digits;
  const torch::ScalarType type;
  MnistNet model{nullptr};
  std::unique_ptr<torch::optim::SGD> sgd;
};

// All parameters in a row, as bytes.
torch::Tensor bytes_of(const MnistNet& model) {
  std::vector<torch::Tensor> flat;
  for (const torch::Tensor& p : model->parameters()) flat.push_back(p.detach().flatten());
  return torch::cat(flat).view(torch::kUInt8);
}

double distance(const MnistNet& a, const MnistNet& b) {
  double worst = 0;
  for (size_t i = 0; i < a->parameters().size(); ++i)
    worst = std::max(worst, (a->parameters()[i] - b->parameters()[i]).abs().max().item<double>());
  return worst;
}

std::string check(const Digits& digits, torch::ScalarType type) {
  Trainer mine(digits, type);
  hvd::DistributedOptimizer optimizer(*mine.sgd, mine.model->named_parameters(),
                                      {.bucket_bytes = 16 << 10});
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    mine.loss(step, hvd::rank(), hvd::rank() + 1).backward();
    optimizer.step();
  }
  const torch::Tensor bytes = bytes_of(mine.model);
  const torch::Tensor all = hvd::allgather(bytes.unsqueeze(0));
  for (int64_t rank = 0; rank < hvd::size(); ++rank)
    if (!all[rank].equal(bytes)) return "rank " + std::to_string(rank) + " has other bits; ";
  if (hvd::rank() != 0) return "";

  Trainer alone(digits, type);
  for (int step = 0; step < kSteps; ++step) alone.step_over_parts(step);
  if (!bytes_of(alone.model).equal(bytes))
    return "one process has other bits, by " + std::to_string(distance(alone.model, mine.model)) +
           "; ";
  if (type != torch::kDouble) return "";
  Trainer larger(digits, type);
  for (int step = 0; step < kSteps; ++step) larger.step_over_larger_batch(step);
  const double d = distance(larger.model, mine.model);
  return d < 1e-12 ? "" : "the larger batch differs by " + std::to_string(d) + "; ";
}

}  // namespace

int main() {
  try {
    at::set_num_threads(1);
    hvd::init();
    const Digits digits = load_digits(default_digits_directory(), Part::kTraining);
    const std::string found = check(digits, torch::kFloat) + check(digits, torch::kDouble);
    std::puts(found.empty() ? "equal" : found.c_str());
    hvd::shutdown();
    return found.empty() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mnist_parity: %s\n", error.what());
    return 1;
  }
}
