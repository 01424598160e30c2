// What the tests of training share: a net, its optimizer and its ranks; one process that does the
// same alone; comparing bits.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/torch/optimizer.h"
#include "tests/runtime/torch/nets.h"
#include "tests/runtime/torch/thread_ranks.h"

// Last, and from here for all: LibTorch has a CHECK of its own, which ends the program.
#include "tests/support/catch.h"

namespace hvd {

// With these the nets of nets.h have several buckets.
inline constexpr DistributedOptimizerOptions kSmallBuckets = {.bucket_bytes = 8 << 10};

// A sum's bits depend on how many threads share it.
void use_one_thread();

bool same_bits(const at::Tensor& a, const at::Tensor& b);
// "" or the name of the first parameter or buffer that differs.
std::string first_difference(const torch::nn::Module& a, const torch::nn::Module& b);

// Runs `body` and returns its exception's text, "" when there is none.
template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}
bool contains(const std::string& text, const std::string& part);

// For checks in ranks' threads, where Catch2 must not be called.
inline void expect(bool good, const char* what) {
  if (!good) throw std::runtime_error(std::string("expected ") + what);
}
#define EXPECT(condition) ::hvd::expect(condition, #condition)
void expect_same(const torch::nn::Module& a, const torch::nn::Module& b);

// Runs `body` as 1, 2 and 4 ranks; fails the Catch2 test when a rank threw.
void check_as_ranks(const std::function<void(const ThreadRank&)>& body);

// One rank's net, optimizer and DistributedOptimizer.
struct Training {
  Training(const ThreadRank& rank_, const nets::MakeNet& make,
           const nets::MakeOptimizer& optimizer_of,
           const DistributedOptimizerOptions& options = {});
  void backward(int step) const { net->loss(rank.rank, step).backward(); }
  void train(int from, int to);  // zero_grad, backward, step for each step in [from, to)
  const Buckets& buckets(size_t set = 0) const { return impl->buckets(set); }

  const ThreadRank rank;
  std::shared_ptr<nets::Net> net;
  std::unique_ptr<torch::optim::Optimizer> inner;
  std::unique_ptr<DistributedOptimizer> optimizer;
  DistributedOptimizer::Impl* impl;
};

// With which part a sum begins: CPU ranks' with the first, the stand-in of NCCL's with the last. On
// a device factors are a kernel's, whose results are the inputs of the sum.
enum class AddFrom { kFirst, kLast };

// What the ranks' reduction makes of one gradient per part, in the order of the sum, written in the
// plainest way; undefined when all are.
at::Tensor combine(const std::vector<at::Tensor>& parts, const DistributedOptimizerOptions& options,
                   AddFrom from = AddFrom::kFirst);

// The gradients of all parts, computed one after the other and combined, left in .grad.
void backward_alone(nets::Net& net, int parts, int step,
                    const DistributedOptimizerOptions& options = {},
                    AddFrom from = AddFrom::kFirst);

// One process that computes all parts of each step.
struct Alone {
  explicit Alone(const nets::MakeNet& make = nets::mlp(),
                 const nets::MakeOptimizer& optimizer_of = nets::sgd())
      : net(make()), optimizer(optimizer_of(net->parameters())) {}
  void step(int parts, int step) const {
    backward_alone(*net, parts, step);
    optimizer->step();
  }
  std::shared_ptr<nets::Net> net;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

}  // namespace hvd
