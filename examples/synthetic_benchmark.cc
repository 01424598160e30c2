// Images per second of data-parallel training on made-up data, as Horovod's synthetic benchmark.
//
//   hvdrun -np 2 synthetic_benchmark --model resnet18 --batch-size 4 --num-iters 3
#include <hvd/hvd.h>
#include <hvd/torch.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <climits>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "examples/error_line.h"
#include "examples/resnet.h"
#include "examples/training_flags.h"

namespace {

struct Options {
  std::string model = "resnet50";
  int64_t batch_size = 32;
  int64_t image_size = 224;
  int warmup_batches = 10;
  int batches_per_iteration = 10;
  int iterations = 10;
  bool fp16_allreduce = false;
  bool no_cuda = false;
};

Options parse(int argc, char** argv) {
  Options o;
  CLI::App app{"Measures data-parallel training on made-up images", "synthetic_benchmark"};
  app.option_defaults()->always_capture_default();
  app.add_option("--model", o.model)->check(CLI::IsMember({"resnet18", "resnet34", "resnet50"}));
  app.add_option("--batch-size", o.batch_size, "images per rank and step")
      ->check(CLI::Range(1, INT_MAX));
  app.add_option("--image-size", o.image_size, "pixels a side")->check(CLI::Range(1, INT_MAX));
  app.add_option("--num-warmup-batches", o.warmup_batches)->check(CLI::Range(0, INT_MAX));
  app.add_option("--num-batches-per-iter", o.batches_per_iteration)->check(CLI::Range(1, INT_MAX));
  app.add_option("--num-iters", o.iterations)->check(CLI::Range(1, INT_MAX));
  parse_training_flags(app, argc, argv, o.fp16_allreduce, o.no_cuda);
  return o;
}

struct Estimate {
  double mean = 0, margin = 0;  // 1.96 standard deviations
};

Estimate estimate(const std::vector<double>& samples) {
  const auto n = static_cast<double>(samples.size());
  const double mean = std::accumulate(samples.begin(), samples.end(), 0.0) / n;
  double squares = 0;
  for (const double sample : samples) squares += (sample - mean) * (sample - mean);
  return {mean, 1.96 * std::sqrt(squares / n)};
}

void run(const Options& o) {
  using Clock = std::chrono::steady_clock;
  torch::manual_seed(42);
  ResNet model = make_resnet(o.model);
  const torch::Device device = o.no_cuda ? torch::Device(torch::kCPU) : hvd::local_device();
  model->to(device);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.01 * hvd::size()));
  hvd::broadcast_parameters(*model, 0);
  hvd::broadcast_optimizer_state(sgd, 0);
  hvd::DistributedOptimizerOptions options;
  if (o.fp16_allreduce) options.compression = hvd::Compression::kFp16;
  hvd::DistributedOptimizer optimizer(sgd, model->named_parameters(), options);

  const torch::Tensor images =
      torch::randn({o.batch_size, 3, o.image_size, o.image_size}).to(device);
  const torch::Tensor targets = torch::randint(1000, {o.batch_size}, torch::kLong).to(device);
  const auto run_batches = [&](int count) {
    torch::Tensor loss;
    for (int batch = 0; batch < count; ++batch) {
      optimizer.zero_grad();
      loss = torch::cross_entropy_loss(model(images), targets);
      loss.backward();
      optimizer.step();
    }
    if (loss.defined()) loss.item();  // a GPU has done all that comes before
  };

  const bool speaks = hvd::rank() == 0;
  const char* const kind = device.is_cpu() ? "CPU" : "GPU";
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // each line when it is there, also into a pipe
  if (speaks) {
    std::printf("Model: %s\nBatch size: %lld\nNumber of %ss: %d\nRunning warmup...\n",
                o.model.c_str(), static_cast<long long>(o.batch_size), kind, hvd::size());
  }
  run_batches(o.warmup_batches);
  if (speaks) std::puts("Running benchmark...");
  std::vector<double> rates;
  for (int iteration = 0; iteration < o.iterations; ++iteration) {
    const auto begin = Clock::now();
    run_batches(o.batches_per_iteration);
    const std::chrono::duration<double> seconds = Clock::now() - begin;
    rates.push_back(static_cast<double>(o.batch_size * o.batches_per_iteration) / seconds.count());
    if (speaks) std::printf("Iter #%d: %.1f img/sec per %s\n", iteration, rates.back(), kind);
  }
  if (!speaks) return;
  const auto [mean, margin] = estimate(rates);
  std::printf("Img/sec per %s: %.1f +-%.1f\n", kind, mean, margin);
  std::printf("Total img/sec on %d %s(s): %.1f +-%.1f\n", hvd::size(), kind, hvd::size() * mean,
              hvd::size() * margin);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    hvd::init();
    run(options);
    hvd::shutdown();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "synthetic_benchmark: %s\n", error_line(error).c_str());
    return 1;
  }
}
