// Training steps as a program makes them, on the rank's GPU.
//
//   device_steps copies        how often gradients are copied
//   device_steps curve [cpu]   the losses of ranks, which one process has, too
//   device_steps trace [cpu]   what the device did in steps: kernels and copies
//   device_steps times [cpu]   rank 0 reads numbers of steps from standard input and answers each
//                              with their mean time in milliseconds; 0, or the end, ends the job.
//                              The net is the MLP of step_nets.h. cpu: for a test of this
//
// Exit status: 1 usage, 3 what stderr says.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>

#include <chrono>
#include <cstdio>
#include <string_view>

#include "hvd/hvd.h"
#include "hvd/torch.h"
#include "tests/benchmark/step_nets.h"
#include "tests/gpu_check/gradient_copies.h"
#include "tests/gpu_check/loss_curve.h"
#include "tests/gpu_check/step_trace.h"

namespace {

// The next number on rank 0's standard input, on every rank.
int next_request() {
  int steps = 0;
  if (hvd::rank() == 0 && std::scanf("%d", &steps) != 1) steps = 0;
  hvd::broadcast_(std::span(reinterpret_cast<uint8_t*>(&steps), sizeof steps), 0);
  return steps;
}

class Trainer {
 public:
  explicit Trainer(at::Device device) : net_(hvd::make_step_net("mlp")) {
    net_->to(device);
    inner_ =
        std::make_unique<torch::optim::SGD>(net_->parameters(), torch::optim::SGDOptions(1e-4));
    optimizer_ = std::make_unique<hvd::DistributedOptimizer>(*inner_, net_->named_parameters());
  }

  double mean_step_ms(int steps) {
    using Clock = std::chrono::steady_clock;
    hvd::barrier();
    const auto begin = Clock::now();
    for (int i = 0; i < steps; ++i) {
      optimizer_->zero_grad();
      net_->loss().backward();
      optimizer_->step();
    }
    wait();
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count() / steps;
  }

 private:
  // Until the device has done all of it: a value that it has to give comes last.
  void wait() const { net_->parameters().front().flatten()[0].item<float>(); }

  std::shared_ptr<hvd::StepNet> net_;
  std::unique_ptr<torch::optim::SGD> inner_;
  std::unique_ptr<hvd::DistributedOptimizer> optimizer_;
};

void serve(at::Device device) {
  Trainer trainer(device);
  for (int steps = next_request(); steps > 0; steps = next_request()) {
    const double ms = trainer.mean_step_ms(steps);
    if (hvd::rank() != 0) continue;
    std::printf("%.4f\n", ms);
    std::fflush(stdout);
  }
}

at::Device device_for(std::string_view word) {
  if (word == "cpu") return at::kCPU;
  const at::Device device = hvd::local_device();
  if (!device.is_cpu()) return device;
  throw hvd::Error(hvd::ErrorCode::kUnavailable,
                   "this rank has no GPU that LibTorch and hvd both can use");
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string_view mode = argc > 1 ? argv[1] : "", word = argc > 2 ? argv[2] : "";
  if (mode != "copies" && mode != "curve" && mode != "trace" && mode != "times") {
    std::fputs("usage: device_steps copies | curve [cpu] | trace [cpu] | times [cpu]\n", stderr);
    return 1;
  }
  hvd::init();
  at::set_num_threads(1);
  const at::Device device = device_for(word);
  if (mode == "times") {
    serve(device);
  } else {
    const std::string said = mode == "trace"   ? hvd::trace_steps(device)
                             : mode == "curve" ? hvd::check_loss_curve(device)
                                               : hvd::check_gradient_copies(device);
    std::fputs(said.c_str(), stdout);
    std::fflush(stdout);
  }
  hvd::shutdown();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 3;
}
