// DistributedOptimizer on devices: what one process makes of all ranks' work, with one copy in and
// none out, one launch for each bucket's copies and one for its sum, and no host that waits.
#include <ATen/ATen.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>

#include "runtime/torch/tensor_collective.h"
#include "tests/collectives/nccl/standin.h"
#include "tests/runtime/torch/device/ranks.h"
#include "tests/runtime/torch/training.h"

namespace hvd {
namespace {

// The ranks' training, and on the CPU one process that does all of it.
struct Both {
  Both(const ThreadRank& rank, const nets::MakeNet& make, const nets::MakeOptimizer& optimizer_of,
       const DistributedOptimizerOptions& its_options = kSmallBuckets)
      : options(its_options),
        ranks(rank, on_device(rank, make), optimizer_of, options),
        alone(make, optimizer_of) {}

  void step_alone(int step) const {
    backward_alone(*alone.net, ranks.rank.size, step, options, AddFrom::kLast);
    alone.optimizer->step();
  }
  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      ranks.train(step, step + 1);
      step_alone(step);
    }
  }
  void expect_same() const { hvd::expect_same(*ranks.net, *alone.net); }

  const DistributedOptimizerOptions options;
  Training ranks;
  Alone alone;
};

// Without a dimension, and without an element: of a bucket's type, and in one of its own. With a
// name longer than any that an operation may have.
struct Tiny : nets::Net {
  static constexpr size_t kLongName = 400;
  at::Tensor scale, none, wide;
  Tiny() {
    register_parameter(std::string(kLongName, 's'), at::full({}, 0.5));
    register_parameter("none", at::zeros({0}));
    register_parameter("wide", at::zeros({3, 0}, at::kDouble));
    take_own();
  }
  void take_own() override {
    const auto all = named_parameters();
    scale = all[std::string(kLongName, 's')];
    none = all["none"];
    wide = all["wide"];
  }
  at::Tensor loss(int part, int step) override {
    const at::Tensor x = nets::random(part, step, {7}).to(scale.device());
    return (x * scale).pow(2).sum() + none.sum() + wide.sum();
  }
};

struct Transposed : nets::Net {
  at::Tensor weight;
  Transposed() {
    register_parameter("weight", nets::random(0, 100, {30, 20}).t());
    take_own();
  }
  void take_own() override { weight = named_parameters()["weight"]; }
  at::Tensor loss(int part, int step) override {
    return nets::random(part, step, {8, 20}).to(weight.device()).mm(weight).pow(2).mean() * 0.01;
  }
};

// Two branches, which odd ranks compute in the other order, so that their gradients come in another
// order, too. It makes its calls where SyncBatchNorm sums its statistics.
struct Branches : nets::Net {
  torch::nn::Linear a{40, 70}, left{70, 64}, right{70, 64}, b{64, 3};
  std::function<void(const char*)> call = [](const char*) {};
  Branches() {
    register_module("a", a);
    register_module("left", left);
    register_module("right", right);
    register_module("b", b);
  }
  at::Tensor loss(int part, int step) override {
    const at::Tensor x = nets::random(part, step, {8, 40}).to(a->weight.device());
    const at::Tensor trunk = torch::tanh(a(x));
    at::Tensor first = part % 2 == 0 ? left(trunk) : right(trunk);
    at::Tensor second = part % 2 == 0 ? right(trunk) : left(trunk);
    call("forward");
    at::Tensor& leftmost = part % 2 == 0 ? first : second;
    leftmost.register_hook([this](const at::Tensor&) { call("backward"); });
    trunk.register_hook([this](const at::Tensor&) { call("trunk"); });
    return b(torch::tanh(first + second)).pow(2).mean();
  }
};

long long count(const ThreadRank& rank, const char* name) {
  return hvd_standin_count(name, rank.rank);
}

// Which the product has made the host do.
long long product_waits(const ThreadRank& rank) {
  return count(rank, "host_waits") - own_waits(rank.rank);
}

}  // namespace

TEST_CASE("device training: equals one process that does all ranks' work, bit for bit") {
  const nets::MakeNet tiny = [] { return std::make_shared<Tiny>(); };
  for (const auto& make : {nets::mlp(), nets::shared(), nets::unused(), tiny}) {
    for (const auto& optimizer_of : {nets::sgd(), nets::adamw()}) {
      check_on_devices([&](const ThreadRank& rank) {
        Both both(rank, make, optimizer_of);
        both.train(0, 5);
        both.expect_same();
      });
    }
  }
}

TEST_CASE("device training: one copy in and none out, one launch for each bucket, no host waits") {
  for (const bool set_to_none : {true, false}) {
    check_on_devices([&](const ThreadRank& rank) {
      Both both(rank, nets::mlp(), nets::sgd());
      both.train(0, 2);
      Training& t = both.ranks;
      const long long copies = count(rank, "kernel hvd_cast"),
                      scales = count(rank, "kernel hvd_scale_float32"), waits = product_waits(rank),
                      launches = count(rank, "collective_launches"),
                      registered = count(rank, "registered_collectives");
      constexpr int kSteps = 4;
      for (int step = 2; step < 2 + kSteps; ++step) {
        t.optimizer->zero_grad(set_to_none);
        t.backward(step);
        t.optimizer->step();
        both.step_alone(step);
      }
      // Gradients that were kept lie there already, and are multiplied in their place.
      EXPECT(count(rank, "kernel hvd_cast") - copies ==
             (set_to_none || rank.size > 1 ? kSteps * 4 : 0));
      EXPECT(count(rank, "kernel hvd_scale_float32") - scales == 0);
      EXPECT(count(rank, "collective_launches") - launches == kSteps * 4);
      EXPECT(count(rank, "registered_collectives") - registered == kSteps * 4);
      EXPECT(product_waits(rank) == waits);
      both.expect_same();
    });
  }
}

TEST_CASE("device training: several passes for a step, and their number changes") {
  check_on_devices([](const ThreadRank& rank) {
    DistributedOptimizerOptions options = kSmallBuckets;
    options.backward_passes_per_step = 2;
    Both both(rank, nets::mlp(), nets::sgd(), options);
    Training& t = both.ranks;
    for (int step = 0; step < 6; ++step) {
      const int passes = step < 3 ? 2 : 3;
      if (step == 3) t.optimizer->set_backward_passes_per_step(passes);
      t.optimizer->zero_grad(step % 2 == 0);
      std::vector<std::vector<at::Tensor>> parts;
      for (int part = rank.size - 1; part >= 0; --part) {
        both.alone.net->zero_grad();
        for (int pass = 0; pass < passes; ++pass)
          both.alone.net->loss(part, step * 10 + pass).backward();
        parts.emplace_back();
        for (const at::Tensor& p : both.alone.net->parameters()) parts.back().push_back(p.grad());
      }
      for (int pass = 0; pass < passes; ++pass) t.backward(step * 10 + pass);
      t.optimizer->step();
      const auto parameters = both.alone.net->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        std::vector<at::Tensor> of_one;
        for (const auto& part : parts) of_one.push_back(part[i]);
        parameters[i].mutable_grad() = combine(of_one, options);
      }
      both.alone.optimizer->step();
    }
    both.expect_same();
  });
}

TEST_CASE("device training: kept gradients stay what they were, and outlive the engine") {
  check_on_devices([](const ThreadRank& rank) {
    std::vector<std::pair<at::Tensor, at::Tensor>> kept;
    const auto expect_whole = [&] {
      for (const auto& [gradient, copy] : kept) EXPECT(same_bits(gradient, copy));
      kept.clear();
    };
    const auto keep = [&](const nets::Net& net) {
      for (const at::Tensor& p : net.parameters()) kept.emplace_back(p.grad(), p.grad().cpu());
    };
    {
      Both both(rank, nets::mlp(), nets::sgd());
      for (int step = 0; step < 9; ++step) {
        both.train(step, step + 1);
        expect_whole();
        if (step % 3 != 0) keep(*both.ranks.net);
      }
      both.expect_same();
      kept.clear();
      keep(*both.ranks.net);
    }
    expect_whole();
  });
}

TEST_CASE("device training: gradients that one rank keeps, and sums itself, where others do not") {
  check_on_devices([](const ThreadRank& rank) {
    Both both(rank, nets::mlp(), nets::sgd());
    std::vector<at::Tensor> kept;
    for (int step = 0; step < 8; ++step) {
      both.train(step, step + 1);
      // In a home on some ranks and in a spare on another.
      at::Tensor gradient = both.ranks.net->parameters()[0].grad();
      const at::Tensor before = gradient.cpu();
      const at::Tensor sum = TensorCollective::run(
          *rank.engine, TensorCollective::allreduce(gradient, TensorCollective::Place::kInPlace,
                                                    {.op = ReduceOp::kSum}, "gradient"));
      EXPECT(sum.is_same(gradient));
      EXPECT(at::allclose(sum.cpu(), before * rank.size));
      kept.clear();
      if (rank.rank == 1 && step % 3 != 0)
        for (const at::Tensor& p : both.ranks.net->parameters()) kept.push_back(p.grad());
    }
    both.expect_same();
  });
}

TEST_CASE("device training: gradients lie in the parameters' strides, whatever those are") {
  check_on_devices([](const ThreadRank& rank) {
    Both both(rank, [] { return std::make_shared<Transposed>(); }, nets::sgd());
    both.train(0, 4);
    const at::Tensor weight = both.ranks.net->named_parameters()["weight"];
    EXPECT(!weight.is_contiguous() && weight.grad().strides() == weight.strides());
    both.expect_same();
  });
}

TEST_CASE("device training: a parameter that no rank used keeps no gradient") {
  check_on_devices([](const ThreadRank& rank) {
    Both both(rank, nets::unused(), nets::adamw());
    both.train(0, 4);
    const auto parameters = both.ranks.net->named_parameters();
    EXPECT(!parameters["never.weight"].grad().defined());
    EXPECT(parameters["a.weight"].grad().device() == device_of(rank));
    both.expect_same();
  });
}

TEST_CASE("device training: gradients travel as fp16") {
  check_on_devices([](const ThreadRank& rank) {
    DistributedOptimizerOptions options = kSmallBuckets;
    options.compression = Compression::kFp16;
    Both both(rank, nets::mlp(), nets::sgd(), options);
    const long long waits = product_waits(rank);
    both.train(0, 5);
    EXPECT(product_waits(rank) == waits);
    both.expect_same();
  });
}

TEST_CASE("device training: parameters that are added later join") {
  check_on_devices([](const ThreadRank& rank) {
    const auto first_part = [](std::vector<at::Tensor> all) {
      all.resize(2);
      return std::make_unique<torch::optim::SGD>(std::move(all), torch::optim::SGDOptions(0.05));
    };
    Both both(rank, nets::mlp(), first_part);
    for (int step = 0; step < 6; ++step) {
      if (step == 3) {
        for (const auto& [net, optimizer] :
             {std::pair(both.ranks.net, both.ranks.inner.get()),
              std::pair(both.alone.net, both.alone.optimizer.get())}) {
          const auto all = net->parameters();
          optimizer->add_param_group({std::vector<at::Tensor>(all.begin() + 2, all.end())});
        }
      }
      both.train(step, step + 1);
    }
    EXPECT(both.ranks.impl->sets() == 2);
    both.expect_same();
  });
}

TEST_CASE("device training: two optimizers whose parameters have the same names take turns") {
  check_on_devices([](const ThreadRank& rank) {
    Both a(rank, nets::mlp(), nets::sgd()), b(rank, nets::unused(), nets::adamw());
    for (int step = 0; step < 4; ++step) {
      for (const Both* one : {&a, &b}) {
        one->ranks.optimizer->zero_grad();
        one->ranks.backward(step);
      }
      for (const Both* one : {&a, &b}) {
        one->ranks.optimizer->step();
        one->step_alone(step);
      }
    }
    a.expect_same();
    b.expect_same();
  });
}

TEST_CASE("device training: hooks in another stream than step") {
  const StandinSetting delay("delay_us", "2000");
  for (const bool some_unused : {false, true}) {
    for (const auto compression : {Compression::kNone, Compression::kFp16}) {
      check_on_devices([&](const ThreadRank& rank) {
        const c10::Stream here = current_standin_stream(device_of(rank)),
                          other = new_standin_stream(device_of(rank));
        DistributedOptimizerOptions options = kSmallBuckets;
        options.compression = compression;
        std::optional<Both> both;
        {
          const c10::StreamGuard guard(other);  // where autograd calls the hooks from then on
          both.emplace(rank, some_unused ? nets::unused() : nets::mlp(), nets::sgd(), options);
        }
        for (int step = 0; step < 6; ++step) {
          order(other, here);  // the step before has made the parameters
          both->ranks.optimizer->zero_grad(some_unused || step % 2 == 0);
          order(other, here);
          {
            const c10::StreamGuard guard(other);
            both->ranks.backward(step);
          }
          both->ranks.optimizer->step();
          both->step_alone(step);
        }
        both->expect_same();
      });
    }
  }
}

TEST_CASE("device training: synchronous sums inside backward pass between the buckets") {
  const nets::MakeNet branches = [] {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    torch::manual_seed(42);
    return std::make_shared<Branches>();
  };
  check_on_devices([&](const ThreadRank& rank) {
    Both both(rank, branches, nets::sgd());
    std::atomic<int> sums{0};
    dynamic_cast<Branches&>(*both.ranks.net).call = [&](const char* name) {
      const at::Tensor statistic = at::full({7}, rank.rank + 1, at::TensorOptions(device_of(rank)));
      const at::Tensor sum = TensorCollective::run(
          *rank.engine, TensorCollective::allreduce(statistic, TensorCollective::Place::kNew,
                                                    {.op = ReduceOp::kSum}, name));
      EXPECT(sum.cpu().eq(rank.size * (rank.size + 1) / 2).all().item<bool>());
      ++sums;
    };
    both.train(0, 5);
    EXPECT(sums == 3 * 5);
    both.expect_same();
  });
}

TEST_CASE("device training: memory that is let go of stays until the device is through with it") {
  run_on_devices(2, [](const ThreadRank& rank) {
    auto both = std::make_unique<Both>(rank, nets::mlp(), nets::sgd());
    both->train(0, 2);
    const auto net = both->ranks.net, alone = both->alone.net;
    both->ranks.optimizer->zero_grad();
    both->ranks.backward(2);
    std::latch let_go(1);
    launch(current_standin_stream(device_of(rank)), {}, [&] { let_go.wait(); });
    both->ranks.optimizer->step();
    both->step_alone(2);
    both.reset();
    net->zero_grad();
    let_go.count_down();
    expect_same(*net, *alone);
  });
}

TEST_CASE("device training: what a void step has under way does not come over the next one") {
  const StandinSetting at_once("delay_us", "0");
  std::latch stepped(2);
  run_on_devices(2, [&](const ThreadRank& rank) {
    Training t(rank, on_device(rank, nets::mlp()), nets::sgd(0.5, 0), kSmallBuckets);
    const c10::Stream first = new_standin_stream(device_of(rank)),
                      second = new_standin_stream(device_of(rank));
    std::vector<at::Tensor> before;
    for (const at::Tensor& p : t.net->parameters()) before.push_back(p.detach().cpu());
    const auto set_gradients = [&](double value) {
      for (const at::Tensor& p : t.net->parameters()) p.mutable_grad() = at::full_like(p, value);
    };
    {
      const c10::StreamGuard guard(first);
      set_gradients(100);
      if (rank.rank == 1) {
        // The others' sums of the void step come when the next one has been called.
        launch(first, {}, [&] { stepped.wait(); });
        t.net->parameters()[0].mutable_grad() =
            at::zeros({3, 3}, at::TensorOptions(first.device()));
      }
      EXPECT(contains(error_of([&] { t.optimizer->step(); }), "void on every rank: rank 1"));
    }
    {
      const c10::StreamGuard guard(second);
      set_gradients(1);
      t.optimizer->step();
    }
    stepped.count_down();
    wait_for(second);
    const auto parameters = t.net->parameters();
    for (size_t i = 0; i < parameters.size(); ++i)
      EXPECT(same_bits(parameters[i], before[i] - 0.5));
  });
}

}  // namespace hvd
