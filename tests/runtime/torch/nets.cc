// The nets.
#include "tests/runtime/torch/nets.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace hvd::nets {
namespace {

struct Mlp : Net {
  torch::nn::Linear a{40, 70}, b{70, 130}, c{130, 3};
  Mlp() {
    register_module("a", a);
    register_module("b", b);
    register_module("c", c);
  }
  at::Tensor loss(int part, int step) override {
    const auto x = random(part, step, {8, 40}).to(a->weight.options().requires_grad(false));
    return c(torch::relu(b(torch::tanh(a(x))))).pow(2).mean();
  }
};

struct ChannelsLast : Net {
  torch::nn::Conv2d a{torch::nn::Conv2dOptions(4, 16, 3).padding(1)};
  torch::nn::Conv2d b{torch::nn::Conv2dOptions(16, 24, 3)};
  torch::nn::BatchNorm2d norm{16};
  torch::nn::Linear c{24 * 36, 5};
  ChannelsLast() {
    register_module("a", a);
    register_module("norm", norm);
    register_module("b", b);
    register_module("c", c);
    for (const at::Tensor& p : parameters())
      if (p.dim() == 4) p.set_data(p.contiguous(at::MemoryFormat::ChannelsLast));
  }
  at::Tensor loss(int part, int step) override {
    const auto x = random(part, step, {3, 4, 8, 8})
                       .contiguous(at::MemoryFormat::ChannelsLast)
                       .to(a->weight.device());
    return c(torch::relu(b(torch::relu(norm(a(x))))).flatten(1)).pow(2).mean();
  }
};

struct Mixed : Net {
  std::vector<at::Tensor> weights;
  Mixed() {
    for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kHalf})
      weights.push_back(register_parameter("w" + std::to_string(weights.size()),
                                           at::randn({37, 43}).to(type).requires_grad_()));
  }
  at::Tensor loss(int part, int step) override {
    at::Tensor x = random(part, step, {37, 43});
    for (const at::Tensor& weight : weights) x = torch::tanh(x * weight.to(at::kFloat)) + x;
    return x.pow(2).mean() * 100;  // so that 16-bit gradients are no zeros
  }
};

struct Unused : Net {
  torch::nn::Linear a{64, 80}, sometimes{80, 80}, never{80, 80}, b{80, 2};
  Unused() {
    register_module("a", a);
    register_module("sometimes", sometimes);
    register_module("never", never);
    register_module("b", b);
  }
  at::Tensor loss(int part, int step) override {
    auto x = torch::tanh(a(random(part, step, {8, 64}).to(a->weight.device())));
    if ((part + step) % 3 == 0) x = torch::tanh(sometimes(x));
    return b(x).pow(2).mean();
  }
};

struct Shared : Net {
  torch::nn::Linear a{80, 80};
  at::Tensor head;
  Shared() {
    register_module("a", a);
    head = register_parameter("head", at::full({80}, 0.1));
  }
  void take_own() override { head = named_parameters(false)["head"]; }
  at::Tensor loss(int part, int step) override {
    const auto x = torch::tanh(a(torch::tanh(a(random(part, step, {8, 80}).to(head.device())))));
    return (at::mm(x, a->weight) * head).pow(2).mean();
  }
};

struct ListedTwice : Net {
  torch::nn::Linear a{60, 60}, b{60, 3};
  ListedTwice() {
    register_module("a", a);
    register_module("again", a);
    register_module("b", b);
  }
  at::Tensor loss(int part, int step) override {
    return b(torch::tanh(a(torch::tanh(a(random(part, step, {8, 60}).to(a->weight.device()))))))
        .pow(2)
        .mean();
  }
};

// To where a module keeps what it has registered.
struct Registry : torch::nn::Module {
  static auto parameters() { return &Registry::parameters_; }
};

// LibTorch's default generator is one for all threads.
std::mutex generator_mutex;

template <class T>
MakeNet make() {
  return [] {
    std::lock_guard lock(generator_mutex);
    torch::manual_seed(42);
    return std::make_shared<T>();
  };
}

}  // namespace

at::Tensor random(int part, int step, at::IntArrayRef sizes) {
  const auto generator = at::detail::createCPUGenerator(1000 * static_cast<uint64_t>(step) +
                                                        static_cast<uint64_t>(part) + 17);
  return at::randn(sizes, generator, at::kFloat);
}

void move_to(Net& net, at::Device device) {
  for (const auto& module : net.modules()) {
    auto& registered = (*module).*Registry::parameters();
    for (auto& parameter : registered)
      parameter.value() = parameter.value().detach().to(device).requires_grad_();
    if (auto* linear = dynamic_cast<torch::nn::LinearImpl*>(module.get())) {
      linear->weight = registered["weight"];
      linear->bias = registered["bias"];
    }
  }
  net.take_own();
}

MakeNet mlp() { return make<Mlp>(); }
MakeNet channels_last() { return make<ChannelsLast>(); }
MakeNet unused() { return make<Unused>(); }
MakeNet shared() { return make<Shared>(); }
MakeNet listed_twice() { return make<ListedTwice>(); }
MakeNet mixed() { return make<Mixed>(); }

MakeOptimizer sgd(double lr, double momentum) {
  return [=](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(lr).momentum(momentum));
  };
}

MakeOptimizer adamw() {
  return [](std::vector<at::Tensor> parameters) {
    return std::make_unique<torch::optim::AdamW>(
        std::move(parameters), torch::optim::AdamWOptions(1e-3).weight_decay(0.1));
  };
}

}  // namespace hvd::nets
