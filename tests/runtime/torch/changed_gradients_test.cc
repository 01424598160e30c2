// What becomes of a step whose gradients were changed while they were under way.
#include <ATen/ops/ones_like.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <string>

#include "tests/runtime/torch/training.h"
#include "tests/support/until.h"

namespace hvd {
namespace {

// The last parameters' bucket, which is the first.
void await_first_bucket(const Training& t) {
  until("a bucket is complete", [&] { return t.buckets().list().finished_buckets() > 0; });
}

at::Tensor& last_gradient(Training& t) { return t.net->parameters().back().mutable_grad(); }

}  // namespace

TEST_CASE("changed gradients: what a tensor tells of voids the step on every rank, by its name") {
  const std::function<void(Training&)> changes[] = {
      [](Training& t) { last_gradient(t).mul_(2); },
      [](Training& t) { last_gradient(t) = at::ones_like(last_gradient(t)); },
      [](Training& t) { t.inner->zero_grad(false); },
      [](Training& t) { t.inner->zero_grad(true); },
      [](Training& t) {  // one that may lie where the first one did
        const at::Tensor other = last_gradient(t).clone();
        last_gradient(t) = at::Tensor();
        last_gradient(t) = at::ones_like(other);
      },
  };
  for (const Compression compression : {Compression::kNone, Compression::kFp16})
    for (const auto& change : changes)
      check_as_ranks([&](const ThreadRank& rank) {
        DistributedOptimizerOptions options = kSmallBuckets;
        options.compression = compression;
        Training t(rank, nets::mlp(), nets::sgd(), options);
        t.train(0, 1);
        const auto before = t.net->parameters().back().clone();
        t.optimizer->zero_grad();
        t.backward(1);
        if (rank.rank == rank.size - 1) change(t);
        const std::string said = error_of([&] { t.optimizer->step(); });
        const std::string who = "void on every rank: rank " + std::to_string(rank.size - 1);
        EXPECT(contains(said, who + ": the gradient of \""));
        EXPECT(contains(said, "was changed between backward() and step()"));
        EXPECT(same_bits(before, t.net->parameters().back()));
        t.train(2, 4);
      });
}

TEST_CASE(
    "changed gradients: where no tensor tells, ranks that parted hear of it in the next step") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd(), kSmallBuckets);
    t.train(0, 2);
    t.optimizer->zero_grad();
    t.backward(2);
    await_first_bucket(t);
    last_gradient(t).data().mul_(2 + rank.rank);
    t.optimizer->step();
    t.optimizer->zero_grad();
    t.backward(3);
    const std::string said = error_of([&] { t.optimizer->step(); });
    if (rank.size == 1) return EXPECT(said.empty());
    EXPECT(
        contains(said, "gradients of the step before were not the same on rank 0 and on rank 1"));
    t.train(4, 6);  // is said once
  });
}

TEST_CASE("changed gradients: one element that ranks have otherwise is heard of some steps later") {
  check_as_ranks([](const ThreadRank& rank) {
    if (rank.size == 1) return;
    Training t(rank, nets::mlp(), nets::sgd(), kSmallBuckets);
    const at::Tensor weight = t.net->named_parameters()["c.weight"];  // of the first bucket
    std::string said;
    for (int64_t step = 0; said.empty(); ++step) {
      EXPECT(step <= weight.numel());
      t.optimizer->zero_grad();
      t.backward(int(step));
      await_first_bucket(t);
      weight.grad().data().view(-1)[201].add_(rank.rank);
      said = error_of([&] { t.optimizer->step(); });
    }
    EXPECT(
        contains(said, "gradients of the step before were not the same on rank 0 and on rank 1"));
  });
}

TEST_CASE(
    "changed gradients: behind synchronize(), and before they are under way, all is allowed") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd(), kSmallBuckets);
    for (int step = 0; step < 4; ++step) {
      t.optimizer->zero_grad();
      t.backward(step);
      t.optimizer->synchronize();
      torch::nn::utils::clip_grad_norm_(t.net->parameters(), 0.01 + rank.rank);
      const auto guard = t.optimizer->skip_synchronize();
      t.optimizer->step();
    }
    // A single bucket goes out in step().
    Training one(rank, nets::mlp(), nets::sgd());
    for (int step = 0; step < 4; ++step) {
      one.optimizer->zero_grad();
      one.backward(step);
      torch::nn::utils::clip_grad_norm_(one.net->parameters(), 0.01 + rank.rank);
      one.optimizer->step();
    }
  });
}

}  // namespace hvd
