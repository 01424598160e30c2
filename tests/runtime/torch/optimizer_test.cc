// What users do to a DistributedOptimizer besides the plain loop: mistakes, freezing, groups added
// later, two optimizers, clipping.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include "tests/runtime/torch/training.h"

namespace hvd {

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

TEST_CASE("optimizer: zero_grad between backward and step is an error, and changes nothing") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd(), kSmallBuckets);
    Alone alone;
    for (int step = 0; step < 8; ++step) {
      t.optimizer->zero_grad();
      t.backward(step);
      EXPECT(
          contains(error_of([&] { t.optimizer->zero_grad(); }), "between backward() and step()"));
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
      static_cast<void>(t.optimizer->skip_synchronize());  // ends at once; the outer one does not
      EXPECT(contains(error_of([&] { t.optimizer->step(); }), "call synchronize() first"));
    }
    t.optimizer->step();
  });
}

TEST_CASE("optimizer: under skip_synchronize a closure synchronizes, or is refused") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd(), kSmallBuckets);
    Alone alone;
    const auto guard = t.optimizer->skip_synchronize();
    for (const bool forgets : {false, true, false}) {
      const std::string error = error_of([&] {
        t.optimizer->step([&] {
          t.optimizer->zero_grad();
          t.backward(0);
          if (!forgets) t.optimizer->synchronize();
          return at::ones({});
        });
      });
      EXPECT(forgets ? contains(error, "call synchronize() first") : error.empty());
      if (forgets) t.optimizer->synchronize();
      if (forgets) EXPECT(t.optimizer->step([] { return at::ones({}); }).defined());
      alone.step(rank.size, 0);
    }
    expect_same(*t.net, *alone.net);
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
  int after_skipped = -1;
  run_as_threads(1, [&](const ThreadRank& rank) {
    c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    Training t(rank, nets::mlp(), nets::sgd());
    t.train(0, 2);
    const auto reduce = [&](int step) {
      t.optimizer->zero_grad();
      t.backward(step);
      t.optimizer->synchronize();
    };
    reduce(2);  // and skipped, as after an overflow
    t.train(3, 4);
    after_skipped = warnings.count;
    for (int step = 4; step < 7; ++step) {
      reduce(step);
      t.optimizer->step();
    }
  });
  CHECK(after_skipped == 0);
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

namespace {

using Leaves = std::vector<std::pair<std::string, at::Tensor>>;

// An optimizer of these leaves, nothing around it.
struct OfLeaves {
  OfLeaves(const ThreadRank& rank, const Leaves& leaves,
           const DistributedOptimizerOptions& options = {}) {
    torch::OrderedDict<std::string, at::Tensor> named;
    for (const auto& [name, leaf] : leaves)
      parameters.push_back(named.insert(name, leaf.detach().requires_grad_()));
    sgd = std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(1));
    impl = std::make_unique<DistributedOptimizer::Impl>(*sgd, named, options, rank.make);
  }
  // One step in which parameter 0's gradient is `gradient`.
  void step(const at::Tensor& gradient) {
    parameters[0].mutable_grad() = at::Tensor();
    (parameters[0] * gradient).sum().backward();
    impl->step(nullptr);
  }
  std::vector<at::Tensor> parameters;
  std::unique_ptr<torch::optim::SGD> sgd;
  std::unique_ptr<DistributedOptimizer::Impl> impl;
};

at::Tensor transposed(const at::Tensor& t) { return t.detach().t().contiguous().t(); }

// What every rank is told when rank 1 of 3 has `other` where the rest have `usual`.
std::string told(const Leaves& usual, const Leaves& other) {
  std::vector<std::string> said(3);
  run_as_threads(3, [&](const ThreadRank& rank) {
    const Leaves& mine = rank.rank == 1 ? other : usual;
    said[size_t(rank.rank)] = error_of([&] { OfLeaves(rank, mine); });
  });
  CHECK(said[0] == said[1]);
  CHECK(said[0] == said[2]);
  return said[0];
}

Leaves many_leaves(int count) {
  Leaves leaves;
  for (int i = 0; i < count; ++i)
    leaves.emplace_back("a.module.with.a.long.name." + std::to_string(i), at::ones({50}));
  return leaves;
}

}  // namespace

TEST_CASE("optimizer: with compression a result finds its place, whatever .grad was set to") {
  run_as_threads(2, [](const ThreadRank& rank) {
    const at::Tensor zeros = at::zeros({25, 2}), ones = at::ones({25, 2}), half = ones / 2;
    OfLeaves one(rank, {{"a", ones.clone()}}, {.compression = Compression::kFp16});
    at::Tensor a = one.parameters[0];
    const auto expect_result_over = [&](const at::Tensor& odd) {
      a.mutable_grad() = rank.rank == 0 ? odd : ones.clone();
      one.impl->step(nullptr);
      EXPECT(same_bits(a.grad(), half));
    };
    // Elements that share memory have no room for as many; gaps are no matter.
    for (const at::Tensor& odd :
         {at::zeros({1}).expand({25, 2}), at::zeros({26}).unfold(0, 2, 1)}) {
      expect_result_over(odd);
      EXPECT(same_bits(odd, zeros));
    }
    const at::Tensor users = at::zeros({25, 2, 2});
    expect_result_over(users.select(2, 0));
    EXPECT(same_bits(users.select(2, 0), rank.rank == 0 ? half : zeros));
    EXPECT(same_bits(users.select(2, 1), zeros));
    at::Tensor unwritable;
    {
      c10::InferenceMode only_here;
      unwritable = at::zeros({25, 2});
    }
    expect_result_over(unwritable);

    // What set_data() does to it while it is under way leaves no trace.
    a.mutable_grad() = at::Tensor();
    (a * float(rank.rank)).sum().backward();
    if (rank.rank == 0) a.mutable_grad().set_data(at::zeros({3, 3}));
    one.impl->step(nullptr);
    EXPECT(same_bits(a.grad(), half));
  });
}

TEST_CASE("optimizer: settings that differ in their last digits are an error on every rank") {
  run_as_threads(2, [](const ThreadRank& rank) {
    const double factor = rank.rank == 1 ? 2e-7 : 1e-7;
    const std::string error = error_of(
        [&] { Training t(rank, nets::mlp(), nets::sgd(), {.gradient_predivide_factor = factor}); });
    EXPECT(contains(error, "predivide 1e-07") && contains(error, "predivide 2e-07"));
  });
}

TEST_CASE("optimizer: different nets are an error on every rank that names both sides") {
  for (const int size : {2, 4}) {
    run_as_threads(size, [](const ThreadRank& rank) {
      const auto make = rank.rank == 1 ? nets::unused() : nets::mlp();
      const std::string error = error_of([&] { Training t(rank, make, nets::sgd()); });
      EXPECT(contains(error,
                      "rank 0 has a.weight float32 [70, 40], parameter 1 of 6; "
                      "rank 1 has a.weight float32 [80, 64], parameter 1 of 8; "));
    });
  }
}

TEST_CASE("optimizer: of 200 parameters the first that differs is named, wherever it is") {
  const Leaves usual = many_leaves(200);
  const auto side = [](int rank, const std::string& what, const std::string& place) {
    return Catch::Contains("rank " + std::to_string(rank) + " has a.module.with.a.long.name." +
                           what + ", parameter " + place + "; ");
  };
  for (const size_t place : {size_t{0}, size_t{100}, size_t{199}}) {
    const std::string n = std::to_string(place), number = std::to_string(place + 1);
    Leaves other = usual;
    other[place].second = at::ones({51});
    CHECK_THAT(told(usual, other), side(0, n + " float32 [50]", number + " of 200") &&
                                       side(1, n + " float32 [51]", number + " of 200"));
    other = usual;
    other[place].second = at::ones({50}, at::kDouble);
    CHECK_THAT(told(usual, other), side(0, n + " float32 [50]", number + " of 200") &&
                                       side(1, n + " float64 [50]", number + " of 200"));
  }
  Leaves other = usual;
  other[150].first += "x";
  CHECK_THAT(told(usual, other), side(0, "150 float32 [50]", "151 of 200") &&
                                     side(1, "150x float32 [50]", "151 of 200"));
  other = usual;  // of which the optimizer is called
  other[0].first += "x";
  CHECK_THAT(told(usual, other),
             side(0, "0 float32 [50]", "1 of 200") && side(1, "0x float32 [50]", "1 of 200"));
  CHECK_THAT(told(usual, many_leaves(201)),
             Catch::Contains("rank 0 has no more than 200 parameters; ") &&
                 side(1, "200 float32 [50]", "201 of 201"));
  other = usual;
  other.erase(other.begin() + 7);
  CHECK_THAT(told(usual, other),
             side(0, "7 float32 [50]", "8 of 200") && side(1, "8 float32 [50]", "8 of 199"));
}

TEST_CASE("optimizer: ranks whose parameters lie or are shaped differently are told which") {
  const at::Tensor square = at::ones({3, 3}), flat = at::ones({4, 6});
  const Leaves usual = {{"a", flat}, {"b", square}};
  CHECK_THAT(told(usual, {{"a", flat}, {"b", transposed(square)}}),
             Catch::Contains("rank 0 has b float32 [3, 3], parameter 2 of 2; ") &&
                 Catch::Contains("rank 1 has b float32 [3, 3] with strides [1, 3], parameter 2") &&
                 Catch::Contains("contiguous()"));
  CHECK_THAT(told(usual, {{"a", flat.t().contiguous()}, {"b", square}}),
             Catch::Contains("rank 0 has a float32 [4, 6], ") &&
                 Catch::Contains("rank 1 has a float32 [6, 4], "));
  const at::Tensor images = at::ones({2, 3, 4, 4});
  CHECK_THAT(
      told({{"conv", images.contiguous(at::MemoryFormat::ChannelsLast)}}, {{"conv", images}}),
      Catch::Contains("rank 0 has conv float32 [2, 3, 4, 4] with strides [48, 1, 12, 3], ") &&
          Catch::Contains("rank 1 has conv float32 [2, 3, 4, 4], "));
}

TEST_CASE("optimizer: strides that say nothing, or change later on one rank, change no result") {
  check_as_ranks([](const ThreadRank& rank) {
    const bool odd = rank.rank == rank.size - 1;
    const at::Tensor values = at::arange(1, 25).to(at::kFloat);
    const auto expect_mean = [&](const OfLeaves& o) {
      const at::Tensor& p = o.parameters[0];
      EXPECT(same_bits(p.grad(), values.view(p.sizes()) * (float(rank.size + 1) / 2)));
    };
    OfLeaves one(rank, {{"a", at::empty_strided({4, 1, 6}, {6, odd ? 77 : 6, 1}).zero_()}});
    one.step(values.view({4, 1, 6}) * (rank.rank + 1));
    expect_mean(one);

    // Where a parameter has gaps its gradient has none.
    OfLeaves gaps(rank, {{"a", odd ? at::zeros({4, 12}).slice(1, 0, 6) : at::zeros({4, 6})}});
    gaps.step(values.view({4, 6}) * (rank.rank + 1));
    expect_mean(gaps);

    OfLeaves later(rank, {{"a", at::zeros({4, 6})}});
    for (int step = 0; step < 6; ++step) {
      at::Tensor& p = later.parameters[0];
      if (odd && step == 2) p.set_data(transposed(p));
      if (odd && step == 4) p.set_data(p.detach().contiguous());
      later.step(values.view({4, 6}) * (rank.rank + 1));
      expect_mean(later);
      EXPECT(same_bits(p, values.view({4, 6}) * (float(-(step + 1) * (rank.size + 1)) / 2)));
    }
  });
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
    EXPECT(contains(error(sgd, {.gradient_predivide_factor = 0}, named),
                    "it has to be from 1e-30 to 1e30"));
    EXPECT(contains(error(sgd, {.op = ReduceOp::kSum, .gradient_predivide_factor = 2}, named),
                    "Average only"));
    EXPECT(contains(error(sgd, {.compression = Compression{7}}, named), "Compression 7 does not"));
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
