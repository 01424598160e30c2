#include "tests/benchmark/step_nets.h"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <vector>

#include "hvd/error.h"

namespace hvd {
namespace {

struct Mnist final : StepNet {
  torch::nn::Conv2d conv1{1, 10, 5}, conv2{10, 20, 5};
  torch::nn::Dropout2d drop;
  torch::nn::Linear fc1{320, 50}, fc2{50, 10};
  at::Tensor x = register_buffer("x", at::randn({64, 1, 28, 28}));
  at::Tensor y = register_buffer("y", at::randint(10, {64}, at::kLong));

  Mnist() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("drop", drop);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  at::Tensor loss() override {
    at::Tensor h = torch::relu(torch::max_pool2d(conv1(x), 2));
    h = torch::relu(torch::max_pool2d(drop(conv2(h)), 2)).view({-1, 320});
    h = torch::dropout(torch::relu(fc1(h)), 0.5, is_training());
    return torch::nll_loss(torch::log_softmax(fc2(h), 1), y);
  }
};

struct Mlp final : StepNet {
  torch::nn::Linear a{1024, 4096}, b{4096, 4096}, c{4096, 1024};
  at::Tensor x = register_buffer("x", at::randn({32, 1024}));
  at::Tensor y = register_buffer("y", at::randint(1024, {32}, at::kLong));

  Mlp() {
    register_module("a", a);
    register_module("b", b);
    register_module("c", c);
  }
  at::Tensor loss() override {
    const at::Tensor h = torch::relu(b(torch::relu(a(x))));
    return torch::nll_loss(torch::log_softmax(c(h), 1), y);
  }
};

struct Vectors final : StepNet {
  std::vector<at::Tensor> p, x;

  explicit Vectors(int64_t kilobytes) {
    for (int i = 0; i < 160; ++i) {
      p.push_back(register_parameter("p" + std::to_string(i), at::randn({kilobytes * 256})));
      x.push_back(register_buffer("x" + std::to_string(i), at::randn({kilobytes * 256})));
    }
  }
  at::Tensor loss() override {
    std::vector<at::Tensor> dots;
    for (size_t i = 0; i < x.size(); ++i) dots.push_back(at::dot(p[i], x[i]));
    return at::stack(dots).sum();
  }
};

}  // namespace

std::shared_ptr<StepNet> make_step_net(const std::string& name) {
  torch::manual_seed(1);
  if (name == "mnist") return std::make_shared<Mnist>();
  if (name == "mlp") return std::make_shared<Mlp>();
  if (!name.empty() && name.size() < 6 && name.find_first_not_of("0123456789") == std::string::npos)
    return std::make_shared<Vectors>(std::stol(name));
  throw Error(ErrorCode::kInvalidArgument, "no net \"" + name + "\": mnist, mlp or a number of KB");
}

}  // namespace hvd
