// What users do to a DistributedOptimizer besides the plain loop: mistakes, freezing, groups added
// later, two optimizers, clipping.
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include "tests/torch/training.h"

namespace hvd {
namespace {

constexpr DistributedOptimizerOptions kSmallBuckets = {.bucket_bytes = 8 << 10};

}  // namespace

TEST_CASE("optimizer: a second backward voids the step on every rank, the next one is good") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd(), kSmallBuckets);
    const int culprit = rank.size - 1;
    Alone alone;
    int done = 0;
    for (int round = 0; round < 3; ++round) {
      t.train(done, done + 3);
      for (int end = done + 3; done < end; ++done) alone.step(rank.size, done);
      t.optimizer->zero_grad();
      t.backward(7);
      if (rank.rank == culprit)
        EXPECT(contains(error_of([&] { t.backward(8); }), "backward_passes_per_step"));
      const std::string error = error_of([&] { t.optimizer->step(); });
      EXPECT(contains(error, "rank " + std::to_string(culprit)));
      EXPECT(contains(error, "backward_passes_per_step"));
    }
    expect_same(*t.net, *alone.net);
  });
}

TEST_CASE("optimizer: parameters are frozen and thawed later") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::adamw(), kSmallBuckets);
    Alone alone(nets::mlp(), nets::adamw());
    for (int step = 0; step < 20; ++step) {
      for (nets::Net* net : {t.net.get(), alone.net.get()}) {
        if (step == 6) net->named_parameters()["b.weight"].requires_grad_(false);
        if (step == 14) net->named_parameters()["b.weight"].requires_grad_(true);
      }
      t.train(step, step + 1);
      alone.step(rank.size, step);
      if (step == 10) EXPECT(!t.net->named_parameters()["b.weight"].grad().defined());
    }
    expect_same(*t.net, *alone.net);
  });
}

TEST_CASE("optimizer: parameters that were frozen in the beginning join when they are thawed") {
  check_as_ranks([](const ThreadRank& rank) {
    const auto frozen = [] {
      auto net = nets::mlp()();
      net->named_parameters()["a.weight"].requires_grad_(false);
      return net;
    };
    Training t(rank, frozen, nets::sgd());
    Alone alone(frozen);
    for (int step = 0; step < 10; ++step) {
      if (step == 5) {
        t.net->named_parameters()["a.weight"].requires_grad_(true);
        alone.net->named_parameters()["a.weight"].requires_grad_(true);
      }
      t.train(step, step + 1);
      alone.step(rank.size, step);
    }
    EXPECT(t.impl->sets() == 2);
    expect_same(*t.net, *alone.net);
  });
}

TEST_CASE("optimizer: a group added later joins; different ones are an error on every rank") {
  check_as_ranks([](const ThreadRank& rank) {
    const auto part = [](nets::Net& net, bool first) {
      const auto all = net.parameters();
      return first ? std::vector<at::Tensor>(all.begin(), all.begin() + 2)
                   : std::vector<at::Tensor>(all.begin() + 2, all.end());
    };
    const auto first_part = [&](std::vector<at::Tensor> all) {
      all.resize(2);
      return std::make_unique<torch::optim::SGD>(std::move(all), torch::optim::SGDOptions(0.05));
    };
    Training t(rank, nets::mlp(), first_part, kSmallBuckets);
    Alone alone(nets::mlp(), first_part);
    for (int step = 0; step < 12; ++step) {
      if (step == 5) {
        t.inner->add_param_group({part(*t.net, false)});
        alone.optimizer->add_param_group({part(*alone.net, false)});
      }
      t.net->zero_grad();
      t.backward(step);
      t.optimizer->step();
      alone.step(rank.size, step);
    }
    EXPECT(t.impl->sets() == 2);
    expect_same(*t.net, *alone.net);
    if (rank.size == 1) return;
    torch::nn::Linear more(4, 4);
    if (rank.rank == 0) t.inner->add_param_group({more->parameters()});
    t.net->zero_grad();
    t.backward(99);
    EXPECT(contains(error_of([&] { t.optimizer->step(); }), "same parameters on all ranks"));
  });
}

TEST_CASE("optimizer: two optimizers take turns, both with gradients under way") {
  check_as_ranks([](const ThreadRank& rank) {
    Training d(rank, nets::mlp(), nets::sgd(), kSmallBuckets);
    Training g(rank, nets::unused(), nets::adamw(), kSmallBuckets);
    Alone d_alone, g_alone(nets::unused(), nets::adamw());
    for (int step = 0; step < 15; ++step) {
      d.optimizer->zero_grad();
      d.backward(step);
      g.optimizer->zero_grad();
      g.backward(step);
      d.optimizer->step();
      g.optimizer->step();
      d_alone.step(rank.size, step);
      g_alone.step(rank.size, step);
    }
    expect_same(*d.net, *d_alone.net);
    expect_same(*g.net, *g_alone.net);
  });
}

TEST_CASE(
    "optimizer: zero_grad between backward and step is an error, behind its back it is none") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd(), kSmallBuckets);
    Alone alone;
    for (int step = 0; step < 8; ++step) {
      t.optimizer->zero_grad();
      t.backward(step);
      EXPECT(
          contains(error_of([&] { t.optimizer->zero_grad(); }), "between backward() and step()"));
      // Dropped while their buckets are under way: they come back with step().
      if (step == 4) t.inner->zero_grad();
      t.optimizer->step();
      alone.step(rank.size, step);
    }
    expect_same(*t.net, *alone.net);
  });
}

TEST_CASE("optimizer: synchronize, clip, step under skip_synchronize") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd(), kSmallBuckets);
    Alone alone;
    for (int step = 0; step < 10; ++step) {
      t.optimizer->zero_grad();
      t.backward(step);
      t.optimizer->synchronize();
      torch::nn::utils::clip_grad_norm_(t.net->parameters(), 0.01);
      {
        const auto guard = t.optimizer->skip_synchronize();
        t.optimizer->step();
      }
      backward_alone(*alone.net, rank.size, step);
      torch::nn::utils::clip_grad_norm_(alone.net->parameters(), 0.01);
      alone.optimizer->step();
    }
    expect_same(*t.net, *alone.net);
    t.optimizer->zero_grad();
    t.backward(0);
    {
      const auto guard = t.optimizer->skip_synchronize();
      EXPECT(contains(error_of([&] { t.optimizer->step(); }), "call synchronize() first"));
    }
    t.optimizer->step();
  });
}

namespace {

struct CountWarnings : c10::WarningHandler {
  void process(const c10::Warning& warning) override {
    if (contains(warning.msg(), "optimizer.step() called without optimizer.skip_synchronize()"))
      ++count;
  }
  int count = 0;
};

}  // namespace

TEST_CASE("optimizer: step after synchronize without the guard warns exactly once") {
  CountWarnings warnings;
  run_as_threads(1, [&](const ThreadRank& rank) {
    c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    Training t(rank, nets::mlp(), nets::sgd());
    t.train(0, 2);
    for (int step = 0; step < 3; ++step) {
      t.optimizer->zero_grad();
      t.backward(step);
      t.optimizer->synchronize();
      t.optimizer->step();
    }
  });
  CHECK(warnings.count == 1);
}

TEST_CASE("optimizer: a closure is evaluated before gradients are reduced") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd());
    Alone alone;
    for (int step = 0; step < 5; ++step) {
      const at::Tensor loss = t.optimizer->step([&] {
        t.optimizer->zero_grad();
        at::Tensor l = t.net->loss(rank.rank, step);
        l.backward();
        return l;
      });
      EXPECT(loss.defined());
      alone.step(rank.size, step);
    }
    expect_same(*t.net, *alone.net);
  });
}

TEST_CASE("optimizer: a gradient set by hand is exchanged, a wrong one voids the step everywhere") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::unused(), nets::sgd());
    t.train(0, 2);
    at::Tensor never = t.net->named_parameters()["never.weight"];
    EXPECT(!never.grad().defined());
    t.optimizer->zero_grad();
    t.backward(2);
    never.mutable_grad() = at::full_like(never, rank.rank + 1);
    t.optimizer->step();
    EXPECT(never.grad().flatten()[0].item<float>() == float(rank.size + 1) / 2);

    t.optimizer->zero_grad();
    t.backward(3);
    // set_data() on the gradient goes behind autograd's own check.
    if (rank.rank == 0) {
      never.mutable_grad() = at::ones_like(never);
      never.mutable_grad().set_data(at::zeros({3, 3}));
    }
    const auto before = t.net->parameters()[0].detach().clone();
    const std::string error = error_of([&] { t.optimizer->step(); });
    EXPECT(contains(error, "rank 0") && contains(error, "never.weight"));
    EXPECT(same_bits(before, t.net->parameters()[0]));
    never.mutable_grad() = at::Tensor();
    t.train(4, 6);
  });
}

TEST_CASE("optimizer: different nets are an error on every rank that names both sides") {
  for (const int size : {2, 4}) {
    run_as_threads(size, [](const ThreadRank& rank) {
      const auto make = rank.rank == 1 ? nets::unused() : nets::mlp();
      const std::string error = error_of([&] { Training t(rank, make, nets::sgd()); });
      EXPECT(contains(error, "rank 0") && contains(error, "rank 1"));
      EXPECT(contains(error, "6 gradients") && contains(error, "8 gradients"));
    });
  }
}

TEST_CASE("optimizer: what cannot be exchanged is refused when it is made") {
  run_as_threads(1, [](const ThreadRank& rank) {
    auto net = nets::mlp()();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    const auto error = [&](torch::optim::Optimizer& inner, DistributedOptimizerOptions options,
                           const DistributedOptimizer::NamedParameters& named) {
      return error_of([&] { DistributedOptimizer::Impl impl(inner, named, options, rank.make); });
    };
    const auto named = net->named_parameters();
    EXPECT(contains(error(sgd, {.op = ReduceOp::kAdasum}, named), "Adasum is not supported yet"));
    EXPECT(contains(error(sgd, {.op = ReduceOp::kMax}, named), "use Average or Sum"));
    EXPECT(contains(error(sgd, {.backward_passes_per_step = 0}, named), "1 or more"));
    EXPECT(contains(error(sgd, {.gradient_predivide_factor = 0}, named), "positive"));
    EXPECT(contains(error(sgd, {.op = ReduceOp::kSum, .gradient_predivide_factor = 2}, named),
                    "Average only"));
    EXPECT(contains(error(sgd, {.bucket_bytes = 0}, named), "bucket_bytes"));
    EXPECT(contains(error(sgd, {}, nets::shared()()->named_parameters()), "named parameters"));
    torch::optim::LBFGS lbfgs(net->parameters());
    EXPECT(contains(error(lbfgs, {}, named), "LBFGS"));
    DistributedOptimizer::Impl first(sgd, named, {}, rank.make);
    torch::optim::SGD other(net->parameters(), torch::optim::SGDOptions(0.1));
    EXPECT(contains(error(other, {}, named), "already belongs to a DistributedOptimizer"));
  });
}

TEST_CASE("optimizer: backward_passes_per_step changes between steps") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd());
    t.train(0, 2);
    t.optimizer->set_backward_passes_per_step(2);
    t.optimizer->zero_grad();
    t.backward(2);
    EXPECT(contains(error_of([&] { t.optimizer->set_backward_passes_per_step(1); }), "step()"));
    t.backward(3);
    t.optimizer->step();
    EXPECT(contains(error_of([&] { t.optimizer->set_backward_passes_per_step(0); }), "1 or more"));
    // Fewer passes than announced are fine.
    t.optimizer->zero_grad();
    t.backward(4);
    t.optimizer->step();
  });
}

}  // namespace hvd
