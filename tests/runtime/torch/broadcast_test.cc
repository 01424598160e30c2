// Parameters, buffers and optimizers from one rank to all.
#include "runtime/torch/broadcast.h"

#include <ATen/ATen.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "tests/runtime/torch/training.h"

namespace hvd {
namespace {

using namespace torch::optim;

NamedTensors tensors_of(const torch::nn::Module& module) {
  NamedTensors result;
  for (const auto& item : module.named_parameters()) result.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) result.emplace_back(item.key(), item.value());
  return result;
}

void steps(nets::Net& net, Optimizer& optimizer, int part, int from, int to) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    net.loss(part, step).backward();
    optimizer.step();
  }
}

// Every rank trains on its own, with options of its own; then all go on from root's state, and have
// to come to the same parameters as root did.
void check_optimizer(
    const std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>, int)>& make) {
  check_as_ranks([&](const ThreadRank& rank) {
    use_one_thread();
    const int root = rank.size - 1;
    const auto net = nets::unused()();
    const auto optimizer = make(net->parameters(), rank.rank);
    steps(*net, *optimizer, rank.rank, 0, 3 + rank.rank);
    broadcast_tensors(*rank.engine, tensors_of(*net), root);
    broadcast_optimizer(*rank.engine, *optimizer, root);
    steps(*net, *optimizer, 0, 10, 15);
    const auto mine = tensors_of(*net);
    for (const auto& [name, tensor] : mine) {
      const at::Tensor theirs = tensor.detach().clone();
      broadcast_tensors(*rank.engine, {{name, theirs}}, root);
      EXPECT(same_bits(theirs, tensor));
    }
  });
}

}  // namespace

TEST_CASE("broadcast: parameters and buffers are root's afterwards") {
  check_as_ranks([](const ThreadRank& rank) {
    const auto expected = nets::channels_last()();
    const auto net = nets::channels_last()();
    const int root = rank.size / 2;
    at::NoGradGuard no_grad;
    if (rank.rank != root)
      for (const auto& [name, tensor] : tensors_of(*net)) tensor.fill_(rank.rank);
    broadcast_tensors(*rank.engine, tensors_of(*net), root);
    expect_same(*net, *expected);
  });
}

TEST_CASE("broadcast: lists of different length are refused on every rank, long names are taken") {
  check_as_ranks([](const ThreadRank& rank) {
    NamedTensors tensors = {{std::string(300, 'a'), at::full({2}, rank.rank)},
                            {std::string(300, 'a') + "b", at::full({3}, rank.rank)},
                            {"none", at::Tensor()}};
    broadcast_tensors(*rank.engine, tensors, 0);
    EXPECT(tensors[1].second.eq(0).all().item<bool>());
    if (rank.size == 1) return;
    if (rank.rank == 1) tensors.pop_back(), tensors.pop_back();
    const std::string error = error_of([&] { broadcast_tensors(*rank.engine, tensors, 0); });
    EXPECT(contains(error, "of a list of 2 tensors") && contains(error, "of a list of 1 tensors"));
  });
}

TEST_CASE("broadcast: SGD, its momentum and its options") {
  check_optimizer([](auto parameters, int rank) {
    return std::make_unique<SGD>(parameters,
                                 SGDOptions(0.01 * (rank + 1)).momentum(0.1 * (rank + 1)));
  });
}

TEST_CASE("broadcast: Adam, AdamW, RMSprop, Adagrad with state and options") {
  check_optimizer([](auto parameters, int rank) {
    return std::make_unique<Adam>(parameters, AdamOptions(0.01 * (rank + 1)).amsgrad(true));
  });
  check_optimizer([](auto parameters, int rank) {
    return std::make_unique<AdamW>(parameters, AdamWOptions(0.01).weight_decay(0.1 * (rank + 1)));
  });
  check_optimizer([](auto parameters, int rank) {
    return std::make_unique<RMSprop>(
        parameters, RMSpropOptions(0.01 * (rank + 1)).momentum(0.5).centered(true));
  });
  check_optimizer([](auto parameters, int rank) {
    return std::make_unique<Adagrad>(parameters, AdagradOptions(0.01).lr_decay(0.1 * (rank + 1)));
  });
}

TEST_CASE("broadcast: options reach an optimizer that has no state yet, and stale state goes") {
  check_as_ranks([](const ThreadRank& rank) {
    const auto net = nets::mlp()();
    Adam adam(net->parameters(), AdamOptions(0.1 * (rank.rank + 1)));
    if (rank.rank != 0) steps(*net, adam, rank.rank, 0, 2);
    broadcast_optimizer(*rank.engine, adam, 0);
    EXPECT(adam.param_groups()[0].options().get_lr() == 0.1);
    EXPECT(adam.state().empty());
  });
}

TEST_CASE("broadcast: several groups keep their own options") {
  check_as_ranks([](const ThreadRank& rank) {
    const auto net = nets::mlp()();
    const auto all = net->parameters();
    SGD sgd(std::vector<at::Tensor>(all.begin(), all.begin() + 2), SGDOptions(rank.rank + 1));
    OptimizerParamGroup second(std::vector<at::Tensor>(all.begin() + 2, all.end()));
    second.set_options(std::make_unique<SGDOptions>(10 + rank.rank));
    sgd.add_param_group(second);
    broadcast_optimizer(*rank.engine, sgd, 0);
    EXPECT(sgd.param_groups()[0].options().get_lr() == 1);
    EXPECT(sgd.param_groups()[1].options().get_lr() == 10);
  });
}

TEST_CASE("broadcast: LBFGS is refused by name, and different optimizers on every rank") {
  check_as_ranks([](const ThreadRank& rank) {
    const auto net = nets::mlp()();
    LBFGS lbfgs(net->parameters());
    EXPECT(contains(error_of([&] { broadcast_optimizer(*rank.engine, lbfgs, 0); }),
                    "LBFGS is not supported"));
    if (rank.size == 1) return;
    Adam adam(net->parameters());
    SGD sgd(net->parameters(), SGDOptions(0.1));
    Optimizer& mine = rank.rank == 1 ? static_cast<Optimizer&>(sgd) : adam;
    const std::string error = error_of([&] { broadcast_optimizer(*rank.engine, mine, 0); });
    EXPECT(contains(error, "SGD with groups of 6") && contains(error, "Adam with groups of 6"));
    Optimizer& odd = rank.rank == 1 ? static_cast<Optimizer&>(lbfgs) : adam;
    const std::string odd_error = error_of([&] { broadcast_optimizer(*rank.engine, odd, 0); });
    EXPECT(contains(odd_error, "LBFGS with groups of 6") &&
           contains(odd_error, "Adam with groups of 6"));
  });
}

TEST_CASE(
    "broadcast: optimizers of parameters of other shapes or types are refused on every rank") {
  check_as_ranks([](const ThreadRank& rank) {
    if (rank.size == 1) return;
    const bool odd = rank.rank == 1;
    const auto said = [&](const at::Tensor& usual, const at::Tensor& other) {
      const at::Tensor same = at::ones({2}).requires_grad_();
      SGD sgd({same, (odd ? other : usual).requires_grad_()}, SGDOptions(0.1).momentum(0.9));
      sgd.param_groups()[0].params()[1].sum().backward();
      sgd.step();  // so that there is a state
      return error_of([&] { broadcast_optimizer(*rank.engine, sgd, rank.size - 1); });
    };
    const std::string shapes = said(at::ones({3, 4}), at::ones({4, 3}));
    EXPECT(contains(shapes,
                    "rank 0 has float32 [3, 4], parameter 2 of 2; "
                    "rank 1 has float32 [4, 3], parameter 2 of 2"));
    EXPECT(contains(said(at::ones({3}), at::ones({3}, at::kDouble)),
                    "rank 0 has float32 [3], parameter 2 of 2; "
                    "rank 1 has float64 [3], parameter 2 of 2"));
    EXPECT(said(at::ones({3}), at::ones({3})).empty());
  });
}

}  // namespace hvd
