// Parameters after many steps: equal, bit for bit, on all ranks and to one process that computes
// every rank's part itself and adds them in rank order.
#include <cmath>
#include <mutex>
#include <numeric>

#include "tests/runtime/torch/training.h"

namespace hvd {
namespace {

struct Case {
  nets::MakeNet net = nets::mlp();
  nets::MakeOptimizer optimizer = nets::sgd();
  DistributedOptimizerOptions options = {};
  bool set_to_none = true;
  bool zero_every_step = true;
  int steps = 50;
};

std::shared_ptr<nets::Net> train_alone(const Case& c, int parts) {
  use_one_thread();
  auto net = c.net();
  const auto parameters = net->parameters();
  const auto optimizer = c.optimizer(parameters);
  std::vector<at::Tensor> carried(parameters.size());  // gradients that were not zeroed
  for (int step = 0; step < c.steps; ++step) {
    std::vector<std::vector<at::Tensor>> gradients(parameters.size());
    for (int part = 0; part < parts; ++part) {
      for (size_t i = 0; i < parameters.size(); ++i)
        parameters[i].mutable_grad() = carried[i].defined() ? carried[i].clone() : at::Tensor();
      for (int pass = 0; pass < c.options.backward_passes_per_step; ++pass)
        net->loss(part, 100 * pass + step).backward();
      for (size_t i = 0; i < parameters.size(); ++i) gradients[i].push_back(parameters[i].grad());
    }
    for (size_t i = 0; i < parameters.size(); ++i)
      parameters[i].mutable_grad() = combine(gradients[i], c.options);
    optimizer->step();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor g = parameters[i].grad();
      carried[i] = !g.defined()         ? g
                   : !c.zero_every_step ? g.clone()
                   : c.set_to_none      ? at::Tensor()
                                        : at::zeros_like(g);
    }
  }
  return net;
}

void train(const Case& c, Training& training) {
  for (int step = 0; step < c.steps; ++step) {
    if (c.zero_every_step) training.optimizer->zero_grad(c.set_to_none);
    for (int pass = 0; pass < c.options.backward_passes_per_step; ++pass)
      training.backward(100 * pass + step);
    training.optimizer->step();
  }
}

// At np 1, 2 and 4 on one host, and on two hosts, where a sum of two parts is the same; with
// buckets of one size for all and with small ones.
void check_parity(Case c) {
  for (const std::vector<int>& hosts : {std::vector{1}, {2}, {4}, {1, 1}}) {
    // Between hosts a factor before the sum is rounded in another place.
    if (hosts.size() > 1 && c.options.gradient_predivide_factor != 1) continue;
    const int size = std::accumulate(hosts.begin(), hosts.end(), 0);
    const auto expected = train_alone(c, size);
    for (const size_t bucket_bytes : {size_t{2} << 20, size_t{8} << 10}) {
      c.options.bucket_bytes = bucket_bytes;
      std::vector<std::string> differences(static_cast<size_t>(size));
      run_as_threads(hosts, [&](const ThreadRank& rank) {
        Training training(rank, c.net, c.optimizer, c.options);
        train(c, training);
        for (const auto& p : training.net->named_parameters()) {
          if (!same_bits(p.value(), expected->named_parameters()[p.key()]))
            differences[static_cast<size_t>(rank.rank)] += " " + p.key();
        }
      });
      for (int rank = 0; rank < size; ++rank) {
        CAPTURE(hosts, rank, bucket_bytes);
        CHECK_THAT(differences[static_cast<size_t>(rank)], Catch::Equals(""));
      }
    }
  }
}

}  // namespace

TEST_CASE("parity: a plain net") { check_parity({}); }

TEST_CASE("parity: channels-last convolutions and batch norm with AdamW") {
  check_parity({.net = nets::channels_last(), .optimizer = nets::adamw()});
}

TEST_CASE("parity: parameters that some or all parts do not use, with AdamW") {
  check_parity({.net = nets::unused(), .optimizer = nets::adamw()});
}

TEST_CASE("parity: one weight used three times") { check_parity({.net = nets::shared()}); }

TEST_CASE("parity: a layer that is listed under two names") {
  check_parity({.net = nets::listed_twice()});
}

TEST_CASE("parity: parameters of four types, with factors, passes and compression too") {
  check_parity({.net = nets::mixed()});
  check_parity({.net = nets::mixed(),
                .options = {.backward_passes_per_step = 2, .gradient_predivide_factor = 2.5},
                .steps = 20});
  check_parity({.net = nets::mixed(),
                .options = {.compression = Compression::kFp16, .gradient_predivide_factor = 2.5},
                .steps = 20});
}

TEST_CASE("parity: gradients zeroed in place") {
  check_parity({.set_to_none = false});
  check_parity({.net = nets::unused(), .set_to_none = false});
}

TEST_CASE("parity: gradients never zeroed") {
  check_parity({.net = nets::unused(),
                .optimizer = nets::sgd(0.001, 0),
                .zero_every_step = false,
                .steps = 20});
}

TEST_CASE("parity: three backward passes a step") {
  check_parity({.options = {.backward_passes_per_step = 3}, .steps = 20});
  check_parity({.net = nets::unused(),
                .options = {.backward_passes_per_step = 3},
                .set_to_none = false,
                .steps = 20});
}

TEST_CASE("parity: sums") {
  check_parity({.optimizer = nets::sgd(0.01), .options = {.op = ReduceOp::kSum}});
}

TEST_CASE("parity: a predivide factor, with three passes too") {
  check_parity({.options = {.gradient_predivide_factor = 2.5}});
  check_parity(
      {.options = {.backward_passes_per_step = 3, .gradient_predivide_factor = 2.5}, .steps = 20});
}

TEST_CASE("parity: on several hosts the ranks stay alike, and every run gives the same bits") {
  for (const std::vector<int>& hosts : {std::vector{2, 2}, {1, 3}, {1, 1, 1}}) {
    CAPTURE(hosts);
    const auto size = static_cast<size_t>(std::accumulate(hosts.begin(), hosts.end(), 0));
    for (const Case& c : {Case{}, Case{.options = {.compression = Compression::kFp16}}}) {
      std::vector<std::shared_ptr<nets::Net>> trained(2 * size);  // of both runs
      for (const size_t run : {size_t{0}, size_t{1}})
        run_as_threads(hosts, [&](const ThreadRank& rank) {
          Training training(rank, c.net, c.optimizer, c.options);
          train(c, training);
          trained[run * size + static_cast<size_t>(rank.rank)] = training.net;
        });
      for (const auto& net : trained)
        CHECK_THAT(first_difference(*net, *trained[0]), Catch::Equals(""));
    }
  }
}

TEST_CASE("parity: fp16 compression, with three passes and unused parameters too") {
  check_parity({.options = {.compression = Compression::kFp16}});
  check_parity({.net = nets::unused(),
                .options = {.compression = Compression::kFp16, .backward_passes_per_step = 3},
                .steps = 20});
}

TEST_CASE("parity: in float64 the ranks follow one process with the larger batch") {
  constexpr int kSteps = 50;
  for (const int size : {2, 4}) {
    auto alone = nets::mlp()();
    alone->to(at::kDouble);
    const auto optimizer = nets::sgd()(alone->parameters());
    for (int step = 0; step < kSteps; ++step) {
      optimizer->zero_grad();
      // The parts are of one size, so the mean of all is the mean of their means.
      at::Tensor loss = alone->loss(0, step);
      for (int part = 1; part < size; ++part) loss = loss + alone->loss(part, step);
      (loss / size).backward();
      optimizer->step();
    }
    std::vector<double> worst(static_cast<size_t>(size));
    run_as_threads(size, [&](const ThreadRank& rank) {
      const auto make_double = [] {
        auto net = nets::mlp()();
        net->to(at::kDouble);
        return net;
      };
      Training training(rank, make_double, nets::sgd());
      training.train(0, kSteps);
      for (const auto& p : training.net->named_parameters()) {
        const double d =
            (p.value() - alone->named_parameters()[p.key()]).abs().max().item<double>();
        worst[static_cast<size_t>(rank.rank)] = std::max(worst[static_cast<size_t>(rank.rank)], d);
      }
    });
    for (const double d : worst) CHECK(d < 1e-12);
  }
}

}  // namespace hvd
