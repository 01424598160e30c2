// Fits a line to points that each rank draws for itself: the shortest training with LibTorch.
#include <hvd/hvd.h>
#include <hvd/torch.h>
#include <torch/torch.h>

#include <cstdio>

namespace {

void run() {
  hvd::init();
  torch::manual_seed(static_cast<uint64_t>(hvd::rank()));
  torch::nn::Linear line(1, 1);
  torch::optim::SGD sgd(line->parameters(), torch::optim::SGDOptions(0.1));
  hvd::broadcast_parameters(*line, 0);
  hvd::broadcast_optimizer_state(sgd, 0);
  hvd::DistributedOptimizer optimizer(sgd, line->named_parameters());
  for (int step = 0; step < 500; ++step) {
    const torch::Tensor x = torch::randn({32, 1});
    optimizer.zero_grad();
    torch::mse_loss(line(x), 2 * x + 1).backward();
    optimizer.step();
  }
  if (hvd::rank() == 0)
    std::printf("y = %.2f x + %.2f\n", line->weight.item<double>(), line->bias.item<double>());
  hvd::shutdown();
}

}  // namespace

int main() {
  try {
    run();
    return 0;
  } catch (const hvd::Error& error) {
    std::fprintf(stderr, "linear: %s\n", error.what());
    return 1;
  }
}
