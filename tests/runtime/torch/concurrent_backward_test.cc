// Threads that run backward() over one model at once, as LibTorch allows them to.
#include <ATen/ATen.h>

#include <thread>
#include <vector>

#include "tests/runtime/torch/training.h"

namespace hvd {
namespace {

constexpr int kThreads = 4, kSteps = 200;

// Each the same gradients, so that their sum is the same in whatever order they come.
void backward_in_threads(const Training& t, int step, std::vector<std::string>& said) {
  std::vector<std::jthread> threads;
  for (std::string& one : said)
    threads.emplace_back([&] { one = error_of([&] { t.backward(step); }); });
}

void step_alone(const Alone& alone, int parts, int step,
                const DistributedOptimizerOptions& options) {
  const auto parameters = alone.net->parameters();
  std::vector<std::vector<at::Tensor>> gradients(parameters.size());
  for (int part = 0; part < parts; ++part) {
    alone.net->zero_grad();
    for (int i = 0; i < kThreads; ++i) alone.net->loss(part, step).backward();
    for (size_t i = 0; i < parameters.size(); ++i) gradients[i].push_back(parameters[i].grad());
  }
  for (size_t i = 0; i < parameters.size(); ++i)
    parameters[i].mutable_grad() = combine(gradients[i], options);
  alone.optimizer->step();
}

}  // namespace

TEST_CASE("concurrent backward: the passes of a step, in as many threads at once") {
  for (const Compression compression : {Compression::kNone, Compression::kFp16}) {
    const DistributedOptimizerOptions options = {
        .compression = compression, .backward_passes_per_step = kThreads, .bucket_bytes = 8 << 10};
    check_as_ranks([&](const ThreadRank& rank) {
      Training t(rank, nets::mlp(), nets::sgd(1e-3), options);
      Alone alone(nets::mlp(), nets::sgd(1e-3));
      std::vector<std::string> said(kThreads);
      for (int step = 0; step < kSteps; ++step) {
        t.optimizer->zero_grad();
        backward_in_threads(t, step, said);
        for (const std::string& one : said) EXPECT(one.empty());
        t.optimizer->step();
        if (step < 20) step_alone(alone, rank.size, step, options);
        if (step == 19) expect_same(*t.net, *alone.net);
      }
    });
  }
}

TEST_CASE("concurrent backward: more of them than passes void the step, and crash nothing") {
  check_as_ranks([](const ThreadRank& rank) {
    Training t(rank, nets::mlp(), nets::sgd(1e-3),
               {.backward_passes_per_step = kThreads - 1, .bucket_bytes = 8 << 10});
    std::vector<std::string> said(kThreads);
    for (int step = 0; step < 50; ++step) {
      t.optimizer->zero_grad();
      backward_in_threads(t, step, said);
      std::string all;
      for (const std::string& one : said) all += one;
      EXPECT(contains(all, "raise backward_passes_per_step"));
      EXPECT(contains(error_of([&] { t.optimizer->step(); }), "void on every rank"));
    }
  });
}

}  // namespace hvd
