// Training steps to be timed, on demand: hvdrun -np 2 --no-tag-output step_benchmark.
//
// Rank 0 reads lines "net mode steps" and answers each with its median step in milliseconds; end of
// file ends the job. Modes: hvd (DistributedOptimizer), nothing (the same hooks and buckets over a
// backend that exchanges nothing), plain (the torch optimizer alone). What was made stays alive.
#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "hvd/hvd.h"
#include "hvd/torch.h"
#include "runtime/torch/optimizer.h"
#include "tests/benchmark/nothing_bucket_list.h"
#include "tests/benchmark/step_nets.h"

namespace {

constexpr size_t kWordBytes = 16;

struct Request {
  char net[kWordBytes];
  char mode[kWordBytes];
  int32_t steps;  // 0: the end
};

class Trainer {
 public:
  Trainer(const std::string& net, const std::string& mode) : net_(hvd::make_step_net(net)) {
    auto options = torch::optim::SGDOptions(1e-4);
    if (net == "mnist") options.momentum(0.5);
    inner_ = std::make_unique<torch::optim::SGD>(net_->parameters(), options);
    if (mode == "hvd")
      optimizer_ = std::make_unique<hvd::DistributedOptimizer>(*inner_, net_->named_parameters());
    else if (mode == "nothing")
      optimizer_ =
          hvd::DistributedOptimizer::Impl::face(std::make_unique<hvd::DistributedOptimizer::Impl>(
              *inner_, net_->named_parameters(), hvd::DistributedOptimizerOptions{},
              hvd::make_nothing_bucket_list));
    else if (mode != "plain")
      throw hvd::Error(hvd::ErrorCode::kInvalidArgument,
                       "no mode \"" + mode + "\": hvd, nothing or plain");
  }

  void step() {
    optimizer_ ? optimizer_->zero_grad() : inner_->zero_grad();
    net_->loss().backward();
    optimizer_ ? optimizer_->step() : inner_->step();
  }

 private:
  std::shared_ptr<hvd::StepNet> net_;
  std::unique_ptr<torch::optim::SGD> inner_;
  std::unique_ptr<hvd::DistributedOptimizer> optimizer_;
};

// The next line of rank 0's stdin, on every rank.
Request next_request() {
  Request request{};
  if (hvd::rank() == 0 &&
      std::scanf("%15s %15s %d", request.net, request.mode, &request.steps) != 3)
    request.steps = 0;
  hvd::broadcast_(std::span(reinterpret_cast<uint8_t*>(&request), sizeof request), 0);
  return request;
}

double median_step_ms(Trainer& trainer, int steps) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  hvd::barrier();
  for (int i = 0; i < steps; ++i) {
    const auto begin = Clock::now();
    trainer.step();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  hvd::barrier();
  std::ranges::sort(times);
  const size_t middle = times.size() / 2;
  return times.size() % 2 ? times[middle] : (times[middle - 1] + times[middle]) / 2;
}

}  // namespace

int main() {
  try {
    hvd::init();
    at::set_num_threads(1);
    std::map<std::pair<std::string, std::string>, Trainer> trainers;
    for (Request request = next_request(); request.steps > 0; request = next_request()) {
      auto trainer = trainers.find({request.net, request.mode});
      if (trainer == trainers.end())
        trainer =
            trainers.try_emplace({request.net, request.mode}, request.net, request.mode).first;
      const double median_ms = median_step_ms(trainer->second, request.steps);
      if (hvd::rank() != 0) continue;
      std::printf("%.4f\n", median_ms);
      std::fflush(stdout);
    }
    trainers.clear();
    hvd::shutdown();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "step_benchmark: %s\n", error.what());
    return 1;
  }
}
