// Where gradients lie: one copy in, none out, homes and spares, hooks, overlap with backward.
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "tests/runtime/torch/training.h"
#include "tests/support/memory_limit_folder.h"
#include "tests/support/until.h"

namespace hvd {
namespace {

// 67 MB of parameters in two pieces that end within a cache line.
struct Large : nets::Net {
  at::Tensor a = register_parameter("a", at::full({4096, 2053}, 0.01));
  at::Tensor b = register_parameter("b", at::full({4096, 2053}, 0.01));
  at::Tensor loss(int part, int step) override {
    const at::Tensor x = nets::random(part, step, {2053}), y = nets::random(part, step, {4096});
    return a.mv(x).dot(y) + b.mv(x).dot(y + 1);
  }
};

// Parameters without dimensions, and without elements: of a bucket's type, and of one of its own.
struct Tiny : nets::Net {
  at::Tensor scale = register_parameter("scale", at::full({}, 0.5));
  at::Tensor none = register_parameter("none", at::zeros({0}));
  at::Tensor wide = register_parameter("wide", at::zeros({3, 0}, at::kDouble));
  at::Tensor loss(int part, int step) override {
    return (nets::random(part, step, {7}) * scale).pow(2).sum() + none.sum() + wide.sum();
  }
};

// Gradients that a user holds on to, and what they were then.
class Kept {
 public:
  void keep(const nets::Net& net, bool alias = false) {
    for (const at::Tensor& p : net.parameters()) {
      gradients_.push_back(alias ? p.grad().view({-1}) : p.grad());
      copies_.push_back(gradients_.back().clone());
    }
  }
  void expect_whole() const {
    for (size_t i = 0; i < gradients_.size(); ++i) EXPECT(same_bits(gradients_[i], copies_[i]));
  }
  void let_go() {
    gradients_.clear();
    copies_.clear();
  }

 private:
  std::vector<at::Tensor> gradients_, copies_;
};

}  // namespace

TEST_CASE("buckets: kept gradients are not written in the next step, and outlive everything") {
  check_as_ranks([](const ThreadRank& rank) {
    Kept kept;
    {
      Training t(rank, nets::mlp(), nets::sgd(), kSmallBuckets);
      Alone alone;
      for (int step = 0; step < 12; ++step) {
        t.train(step, step + 1);
        alone.step(rank.size, step);
        kept.expect_whole();
        kept.let_go();
        if (step % 3 == 1) kept.keep(*t.net, step % 2 == 0);  // for one step
      }
      expect_same(*t.net, *alone.net);
      kept.keep(*t.net);
    }
    kept.expect_whole();
  });
}

TEST_CASE("buckets: what is kept for one step is not written, whatever else is kept for good") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd(), kSmallBuckets);
    Alone alone;
    Kept kept;
    std::vector<at::Tensor> for_good;
    for (int step = 0; step < 8; ++step) {
      t.train(step, step + 1);
      alone.step(rank.size, step);
      kept.expect_whole();
      kept.let_go();
      kept.keep(*t.net);
      if (step == rank.rank)
        for (const at::Tensor& p : t.net->parameters()) for_good.push_back(p.grad());
      if (step != 5) continue;
      // Nor in a step that is void before its gradients are in place.
      t.optimizer->zero_grad();
      at::Tensor first = t.net->parameters()[0];
      first.mutable_grad() = at::ones_like(first);
      if (rank.rank == 0) first.mutable_grad().set_data(at::zeros({3, 3}));
      EXPECT(contains(error_of([&] { t.optimizer->step(); }), "void on every rank: rank 0"));
      kept.expect_whole();
      kept.let_go();
    }
    expect_same(*t.net, *alone.net);
  });
}

TEST_CASE("buckets: without room beside kept gradients the step fails for all, and they stay") {
  const MemoryLimitFolder limit(0);
  for (const int size : {1, 3})
    run_as_threads(size, [&](const ThreadRank& rank) {
      Training t(rank, nets::mlp(), nets::sgd(), kSmallBuckets);
      t.train(0, 1);
      const int poor = size - 1;
      Kept kept;
      if (rank.rank == poor) {
        kept.keep(*t.net);
        rank.host->limit_memory(limit.path());
      }
      t.optimizer->zero_grad();
      t.backward(1);  // not where it is heard
      bool failed = false;
      try {
        t.optimizer->step();
      } catch (const CommFailure& failure) {
        failed = contains(failure.what(), "failed: rank " + std::to_string(poor) +
                                              " kept gradients and has no room for the next ones: "
                                              "cannot take ");
      }
      EXPECT(failed);
      kept.expect_whole();
    });
}

TEST_CASE("buckets: a gradient that cannot be looked at moves no bucket to a spare without room") {
  const MemoryLimitFolder limit(0);
  run_as_threads(3, [&](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd(), kSmallBuckets);
    t.train(0, 1);
    t.optimizer->zero_grad();
    if (rank.rank == 1) {
      rank.host->limit_memory(limit.path());
      at::Tensor& gradient = t.net->parameters().back().mutable_grad();
      gradient = torch::zeros_like(t.net->parameters().back());
      gradient.storage()
          .unsafeGetStorageImpl()
          ->release_data_and_set_meta_custom_data_ptr_error_msg_("gone");
    }
    bool failed = false;
    try {
      t.optimizer->step();
    } catch (const CommFailure& failure) {
      failed = contains(failure.what(), "has no room for the next ones: cannot take ");
    }
    EXPECT(failed);
  });
}

TEST_CASE("buckets: once the epoch broke zero_grad zeroes and backward says what broke it") {
  run_as_threads(3, [](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd(), kSmallBuckets);
    at::Tensor late = at::ones({4, 9}).requires_grad_();  // in a set of buckets of its own
    t.inner->add_param_group(torch::optim::OptimizerParamGroup({late}));
    const auto backward = [&](int step) { (t.net->loss(rank.rank, step) + late.sum()).backward(); };
    backward(0);
    t.optimizer->step();
    t.optimizer->zero_grad();
    const std::string reason = "failed: rank 1 ";
    if (rank.rank == 1) return backward(2);  // it leaves in the middle of a step
    until("the epoch has ended", [&] { return t.buckets().list().ended(); });
    backward(2);  // however long ago the epoch broke, this is not where it is heard
    EXPECT(contains(error_of([&] { t.optimizer->step(); }), reason));
    for (int round = 0; round < 2; ++round) {
      t.optimizer->zero_grad();
      for (const at::Tensor& p : t.net->parameters()) EXPECT(!p.grad().defined());
      EXPECT(!late.grad().defined());
      bool failed = false;
      try {
        backward(3);
      } catch (const CommFailure& failure) {
        failed = contains(failure.what(), reason);
      }
      EXPECT(failed);
    }
    t.optimizer->set_backward_passes_per_step(2);
    EXPECT(contains(error_of([&] { t.optimizer->step(); }), reason));
  });
}

TEST_CASE("buckets: a gradient that is a negative view is taken by its values") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd());
    t.optimizer->zero_grad();
    const at::Tensor values = at::full_like(t.net->parameters()[0], 2);
    t.net->parameters()[0].mutable_grad() = at::_neg_view(values);
    t.optimizer->step();
    EXPECT(t.net->parameters()[0].grad().equal(-values));
  });
}

TEST_CASE("buckets: gradients that users exchange or turn to other memory are taken as they are") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd(), kSmallBuckets);
    Alone alone;
    for (int step = 0; step < 12; ++step) {
      t.optimizer->zero_grad(step % 3 == 0);
      t.backward(step);
      t.optimizer->step();
      alone.step(rank.size, step);
      for (const at::Tensor& p : t.net->parameters()) {
        if (step % 4 == 1) p.grad().set_data(at::ones_like(p));
        if (step % 4 == 3) p.mutable_grad() = at::ones_like(p);
      }
    }
    expect_same(*t.net, *alone.net);
  });
}

TEST_CASE("buckets: a kept gradient stays as it was, though its tensor turns to other memory") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd(), kSmallBuckets);
    for (int step = 0; step < 6; ++step) {
      t.optimizer->zero_grad(step % 2 == 0);
      t.backward(step);
      t.optimizer->step();
      std::vector<at::Tensor> kept, copies;
      for (const at::Tensor& p : t.net->parameters()) {
        kept.push_back(p.grad().detach());
        copies.push_back(p.grad().clone());
        p.grad().set_data(at::ones_like(p));
      }
      for (int later = 0; later < 3; ++later) {
        t.optimizer->zero_grad();
        t.backward(10 + later);
        t.optimizer->step();
      }
      for (size_t i = 0; i < kept.size(); ++i) EXPECT(same_bits(kept[i], copies[i]));
    }
  });
}

TEST_CASE("buckets: gradients lie in the arena after one copy, and nothing is copied out") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd());
    const BucketList& list = t.buckets().list();
    const auto begin = reinterpret_cast<uintptr_t>(list.memory(0, Home::kHome));
    const auto end = reinterpret_cast<uintptr_t>(list.memory(0, Home::kSpare));
    const auto in_arena = [&](const at::Tensor& g) {
      const auto address = reinterpret_cast<uintptr_t>(g.data_ptr());
      return address >= begin && address < end;
    };
    t.optimizer->zero_grad();
    t.backward(0);
    std::vector<void*> addresses;
    for (const at::Tensor& p : t.net->parameters()) {
      EXPECT(in_arena(p.grad()));
      addresses.push_back(p.grad().data_ptr());
    }
    t.optimizer->step();
    for (size_t i = 0; i < addresses.size(); ++i)
      EXPECT(t.net->parameters()[i].grad().data_ptr() == addresses[i]);
    // Gradients zeroed in place stay where they are: autograd adds into the arena.
    for (int step = 1; step < 4; ++step) {
      t.optimizer->zero_grad(false);
      t.backward(step);
      t.optimizer->step();
    }
    for (size_t i = 0; i < addresses.size(); ++i)
      EXPECT(t.net->parameters()[i].grad().data_ptr() == addresses[i]);
  });
}

TEST_CASE("buckets: gradients of a set that no cache keeps, which are streamed, are the same") {
  run_as_threads(2, [](const ThreadRank& rank) {
    const nets::MakeNet make = [] { return std::make_shared<Large>(); };
    Training t(rank, make, nets::sgd());
    Alone alone(make);
    t.train(0, 2);
    for (int step = 0; step < 2; ++step) alone.step(rank.size, step);
    expect_same(*t.net, *alone.net);
  });
}

TEST_CASE("buckets: fp16 compression halves the bytes of the buckets and keeps .grad's type") {
  check_as_ranks([](const ThreadRank& rank) {
    size_t elements = 0;
    DistributedOptimizerOptions options;
    std::vector<BucketShape> plain, halved;
    ThreadRank watched = rank;
    auto* seen = &plain;
    watched.make = [&](const BucketListSpec& spec) {
      *seen = spec.buckets;
      return rank.make(spec);
    };
    {
      Training t(watched, nets::mlp(), nets::sgd(), options);
    }
    seen = &halved;
    options.compression = Compression::kFp16;
    Training t(watched, nets::mlp(), nets::sgd(), options);
    EXPECT(plain.size() == 1 && halved.size() == 1);
    EXPECT(plain[0].type == DataType::kFloat32 && halved[0].type == DataType::kFloat16);
    for (const at::Tensor& p : t.net->parameters()) elements += size_t(p.numel());
    EXPECT(halved[0].count * 2 < elements * 4 * 51 / 100 + 64 * 6);
    t.train(0, 2);
    for (const at::Tensor& p : t.net->parameters()) EXPECT(p.grad().scalar_type() == at::kFloat);
  });
}

TEST_CASE("buckets: with small buckets one is finished on all ranks before backward ends") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd(), {.bucket_bytes = 4 << 10});
    int steps_seen = 0;
    t.net->parameters()[0].register_hook([&](const at::Tensor& gradient) {
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (t.buckets().list().finished_buckets() == 0 && std::chrono::steady_clock::now() < limit)
        std::this_thread::yield();
      steps_seen += t.buckets().list().finished_buckets() > 0;
      return gradient;
    });
    t.train(0, 10);
    EXPECT(steps_seen == 10);
  });
}

TEST_CASE("buckets: a changed type is an error in backward and on every rank") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd());
    t.train(0, 2);
    t.optimizer->zero_grad();
    for (const at::Tensor& p : t.net->parameters()) p.set_data(p.to(at::kDouble));
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (const at::Tensor& p : t.net->parameters()) loss = loss + p.sum();
    const std::string error = error_of([&] { loss.backward(); });
    EXPECT(contains(error, "after changing a parameter's type"));
    EXPECT(contains(error, "is float64 [") && contains(error, "registered as float32 ["));
    EXPECT(contains(error_of([&] { t.optimizer->step(); }), "after changing a parameter's type"));
  });
}

TEST_CASE("buckets: a sparse gradient is a named error") {
  check_as_ranks([](const ThreadRank& rank) {
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
    torch::optim::SGD sgd(embedding->parameters(), torch::optim::SGDOptions(0.1));
    using Impl = DistributedOptimizer::Impl;
    const auto optimizer = Impl::face(std::make_unique<Impl>(
        sgd, embedding->named_parameters(), DistributedOptimizerOptions{}, rank.make));
    const at::Tensor loss = embedding(at::full({3}, 2, at::kLong)).sum();
    EXPECT(contains(error_of([&] { loss.backward(); }), "sparse"));
    EXPECT(contains(error_of([&] { optimizer->step(); }), "sparse"));
  });
}

namespace {

struct CountingHook : torch::autograd::PostAccumulateGradHook {
  explicit CountingHook(int& calls) : calls_(calls) {}
  void operator()(const at::Tensor&) override { ++calls_; }
  int& calls_;
};

void set_hook(const at::Tensor& parameter, int& calls) {
  torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<CountingHook>(calls));
}

}  // namespace

TEST_CASE("buckets: a hook that was there is called, and is there again afterwards") {
  check_as_ranks([](const ThreadRank& rank) {
    int calls = 0;
    auto net = nets::mlp()();
    set_hook(net->parameters()[0], calls);
    {
      Training t(rank, [&] { return net; }, nets::sgd());
      t.train(0, 1);
      EXPECT(calls == 1);
    }
    net->zero_grad();
    net->loss(0, 0).backward();
    EXPECT(calls == 2);
  });
}

// The exit code of a child: 0 if the hook throws there, and lets go, without waiting.
int use_hook_in_child(const at::Tensor& parameter, std::unique_ptr<GradientHook>& hook) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    auto& installed = *torch::autograd::impl::post_acc_grad_hooks(parameter);
    const std::string error = error_of([&] { installed(parameter); });
    const bool free = !GradientHook::is_in_use(parameter);
    hook.reset();
    const std::string after = error_of([&] { installed(parameter); });
    _exit(contains(error, "forked from a rank") && free && after.empty() ? 0 : 1);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child ? status : -1;
}

TEST_CASE("buckets: in a child that is forked during a hook none of them waits") {
  const at::Tensor parameter = at::zeros({1}).requires_grad_();
  std::atomic<bool> inside{false}, over{false};
  auto hook = std::make_unique<GradientHook>(
      parameter, "p",
      [&] {
        inside = true;
        until("the child has ended", [&] { return over.load(); });
      },
      [] { return true; });
  std::jthread backward(
      [&] { (*torch::autograd::impl::post_acc_grad_hooks(parameter))(parameter); });
  until("the hook is called", [&] { return inside.load(); });
  CHECK(use_hook_in_child(parameter, hook) == 0);
  over = true;
}

TEST_CASE("buckets: parameters without dimensions or elements are trained like others") {
  const nets::MakeNet make = [] { return std::make_shared<Tiny>(); };
  check_as_ranks([&](const ThreadRank& rank) {
    Training t(rank, make, nets::sgd());
    Alone alone(make);
    t.train(0, 4);
    for (int step = 0; step < 4; ++step) alone.step(rank.size, step);
    EXPECT(t.net->parameters()[1].grad().sizes() == at::IntArrayRef({0}));
    const at::Tensor scale = t.net->parameters()[0].grad();
    EXPECT(scale.data_ptr() == t.buckets().list().memory(0, Home::kHome));
    expect_same(*t.net, *alone.net);
  });
}

TEST_CASE("buckets: a tensor's hook that throws in mid-backward holds nobody up") {
  constexpr int kRanks = 3;
  std::vector<std::shared_ptr<nets::Net>> trained(kRanks);
  run_as_threads(kRanks, [&](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd(), kSmallBuckets);
    t.train(0, 2);
    t.optimizer->zero_grad();
    const at::Tensor weight = t.net->named_parameters()["b.weight"];
    const unsigned hook = weight.register_hook([&](const at::Tensor& gradient) -> at::Tensor {
      if (rank.rank == 1) throw std::runtime_error("the user's own");
      return gradient;
    });
    const std::string error = error_of([&] { t.backward(2); });
    EXPECT(contains(error, "the user's own") == (rank.rank == 1));
    weight.remove_hook(hook);
    t.optimizer->step();  // what did not come counts as zeros
    t.train(3, 5);
    trained[static_cast<size_t>(rank.rank)] = t.net;
  });
  for (const auto& net : trained)
    CHECK_THAT(first_difference(*trained[0], *net), Catch::Equals(""));
}

TEST_CASE("buckets: a hook of the user's in place of ours costs overlap, not correctness") {
  check_as_ranks([](const ThreadRank& rank) {
    int calls = 0;
    Training t(rank, nets::mlp(), nets::sgd());
    Alone alone;
    set_hook(t.net->parameters()[0], calls);
    t.train(0, 4);
    for (int step = 0; step < 4; ++step) alone.step(rank.size, step);
    EXPECT(calls == 4);
    expect_same(*t.net, *alone.net);
  });
}

}  // namespace hvd
