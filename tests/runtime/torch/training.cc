// Shared pieces of the training tests.
#include "tests/runtime/torch/training.h"

#include <ATen/Parallel.h>

#include <cstring>
#include <utility>

namespace hvd {

void use_one_thread() { at::set_num_threads(1); }

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.detach().cpu().contiguous(), y = b.detach().cpu().contiguous();
  return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() &&
         std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

std::string first_difference(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto parameters = b.named_parameters(), buffers = b.named_buffers();
  for (const auto& p : a.named_parameters())
    if (!same_bits(p.value(), parameters[p.key()])) return p.key();
  for (const auto& p : a.named_buffers())
    if (!same_bits(p.value(), buffers[p.key()])) return p.key();
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void expect_same(const torch::nn::Module& a, const torch::nn::Module& b) {
  const std::string name = first_difference(a, b);
  if (!name.empty()) throw std::runtime_error(name + " differs");
}

void check_as_ranks(const std::function<void(const ThreadRank&)>& body) {
  for (const int size : {1, 2, 4}) {
    INFO("np " << size);
    CHECK_THAT(error_of([&] { run_as_threads(size, body); }), Catch::Equals(""));
  }
}

Training::Training(const ThreadRank& rank_, const nets::MakeNet& make,
                   const nets::MakeOptimizer& optimizer_of,
                   const DistributedOptimizerOptions& options)
    : rank(rank_), net(make()), inner(optimizer_of(net->parameters())) {
  use_one_thread();
  auto made = std::make_unique<DistributedOptimizer::Impl>(*inner, net->named_parameters(), options,
                                                           rank.make);
  impl = made.get();
  optimizer = DistributedOptimizer::Impl::face(std::move(made));
}

void Training::train(int from, int to) {
  for (int step = from; step < to; ++step) {
    optimizer->zero_grad();
    backward(step);
    optimizer->step();
  }
}

at::Tensor combine(const std::vector<at::Tensor>& parts, const DistributedOptimizerOptions& options,
                   AddFrom from) {
  at::Tensor like;
  for (const at::Tensor& part : parts)
    if (part.defined()) like = part;
  if (!like.defined()) return {};
  const bool fp16 = options.compression == Compression::kFp16;
  const double average = options.op == ReduceOp::kAverage ? 1.0 / double(parts.size()) : 1.0;
  const bool on_device = from == AddFrom::kLast;
  const double pre = on_device ? average : 1 / options.gradient_predivide_factor;
  const double post = on_device ? 1 : options.gradient_predivide_factor * average;
  const at::ScalarType type = like.scalar_type();
  const at::ScalarType sent = fp16 ? at::kHalf : type;
  const bool in_float = sent == at::kHalf || sent == at::kBFloat16;
  at::Tensor sum;
  for (const at::Tensor& part : parts) {
    at::Tensor x = part.defined() ? part : at::zeros_like(like);
    if (fp16 && !on_device) x = x.to(at::kHalf);
    if (in_float && x.scalar_type() != at::kDouble) x = x.to(at::kFloat);
    x = x * at::scalar_tensor(pre, x.options());
    if (on_device) x = x.to(sent);
    if (in_float) x = x.to(at::kFloat);
    sum = sum.defined() ? sum + x : x;
  }
  sum = sum * at::scalar_tensor(post, sum.options());
  return sum.to(sent).to(type);
}

void backward_alone(nets::Net& net, int parts, int step, const DistributedOptimizerOptions& options,
                    AddFrom from) {
  const auto parameters = net.parameters();
  std::vector<std::vector<at::Tensor>> gradients(parameters.size());
  for (int k = 0; k < parts; ++k) {
    net.zero_grad();
    net.loss(from == AddFrom::kFirst ? k : parts - 1 - k, step).backward();
    for (size_t i = 0; i < parameters.size(); ++i) gradients[i].push_back(parameters[i].grad());
  }
  for (size_t i = 0; i < parameters.size(); ++i)
    parameters[i].mutable_grad() = combine(gradients[i], options, from);
}

}  // namespace hvd
