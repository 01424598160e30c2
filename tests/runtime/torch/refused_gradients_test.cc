// Gradients that no step can exchange: each voids the step on every rank, by its parameter's name.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/runtime/torch/training.h"

namespace hvd {
namespace {

void backward(const Training& t, int step, bool create_graph) {
  t.net->loss(t.rank.rank, step).backward({}, /*retain_graph=*/std::nullopt, create_graph);
}

}  // namespace

TEST_CASE("refused gradients: those of backward() with create_graph, in any pass") {
  for (const int passes : {1, 2})
    for (int culprit_pass = 0; culprit_pass < passes; ++culprit_pass)
      check_as_ranks([&](const ThreadRank& rank) {
        Training t(rank, nets::mlp(), nets::sgd(),
                   {.backward_passes_per_step = passes, .bucket_bytes = 8 << 10});
        const std::string culprit = "rank " + std::to_string(rank.size - 1);
        const auto before = t.net->parameters()[0].detach().clone();
        for (int pass = 0; pass < passes; ++pass) {
          const bool wrong = rank.rank == rank.size - 1 && pass == culprit_pass;
          const std::string thrown = error_of([&] { backward(t, pass, wrong); });
          EXPECT(contains(thrown, "without create_graph") == wrong);
          if (wrong) break;
        }
        const std::string said = error_of([&] { t.optimizer->step(); });
        EXPECT(contains(said, "void on every rank: " + culprit + ": the gradient of \""));
        EXPECT(contains(said, "torch::autograd::grad()"));
        EXPECT(same_bits(before, t.net->parameters()[0]));
        t.optimizer->zero_grad();
        for (int pass = 0; pass < passes; ++pass) t.backward(pass);
        t.optimizer->step();
      });
}

TEST_CASE("refused gradients: a penalty on gradients, by autograd::grad, is none of them") {
  const auto penalized = [](nets::Net& net, int part, int step) {
    const at::Tensor loss = net.loss(part, step);
    at::Tensor penalty = at::zeros({});
    for (const at::Tensor& gradient :
         torch::autograd::grad({loss}, net.parameters(), {}, /*retain_graph=*/true,
                               /*create_graph=*/true))
      penalty = penalty + gradient.pow(2).sum();
    (loss + penalty).backward();
  };
  check_as_ranks([&](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd(), {.bucket_bytes = 8 << 10});
    Alone alone;
    for (int step = 0; step < 3; ++step) {
      t.optimizer->zero_grad();
      penalized(*t.net, 0, step);  // the same on every rank: so is their mean
      t.optimizer->step();
      alone.net->zero_grad();
      penalized(*alone.net, 0, step);
      alone.optimizer->step();
    }
    expect_same(*t.net, *alone.net);
  });
}

TEST_CASE("refused gradients: those without memory, or in a layout of their own") {
  const std::pair<at::Tensor, std::string> odd[] = {
      {at::_efficientzerotensor({3}, at::kFloat), "\"c.bias\" has no memory of its own"},
      {at::ones({3}).to_mkldnn(), "\"c.bias\" has layout Mkldnn"},
      {at::ones({3}).to_sparse(), "\"c.bias\" is sparse"},
  };
  for (const auto& [gradient, why] : odd)
    for (const Compression compression : {Compression::kNone, Compression::kFp16})
      check_as_ranks([&](const ThreadRank& rank) {
        Training t(rank, nets::mlp(), nets::sgd(), {.compression = compression});
        const bool wrong = rank.rank == rank.size - 1;
        at::Tensor bias = t.net->named_parameters()["c.bias"];
        if (wrong) bias.mutable_grad() = gradient;
        const std::string said = error_of([&] { t.optimizer->synchronize(); });
        EXPECT(
            contains(said, "rank " + std::to_string(rank.size - 1) + ": the gradient of " + why));
        bias.mutable_grad() = at::Tensor();
        t.train(0, 2);
      });
}

}  // namespace hvd
