// <hvd/torch.h> as a program sees it, linked against the shared libraries: alone, and as ranks
// under hvdrun.
#include <ATen/ATen.h>
#include <hvd/hvd.h>
#include <hvd/torch.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

// Last: LibTorch has a CHECK of its own, which ends the program.
#include "tests/support/catch.h"

namespace {

struct Job {
  Job() { hvd::init(); }
  ~Job() { hvd::shutdown(); }
};

template <class Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const hvd::Error& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

double mean_rank() { return double(hvd::size() - 1) / 2; }

}  // namespace

TEST_CASE("api: before init() every call says what to do") {
  CHECK(contains(error_of([] { hvd::allreduce(at::ones({2})); }), "hvd::init()"));
  CHECK(contains(error_of([] { hvd::allgather_async(at::ones({2}), {.name = "x"}); }),
                 "hvd::init()"));
  torch::nn::Linear net(2, 2);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  CHECK(contains(error_of([&] { hvd::DistributedOptimizer o(sgd, net->named_parameters()); }),
                 "hvd::init()"));
}

namespace {

struct SharedMemory {
  int maps = 0;
  int64_t kilobytes = 0;  // that are taken
};

SharedMemory shared_memory() {
  SharedMemory found;
  bool ours = false;
  std::ifstream file("/proc/self/smaps");
  for (std::string line; std::getline(file, line);) {
    if (line.find("kB") == std::string::npos && line.find('/') != std::string::npos)
      ours = contains(line, "/memfd:"), found.maps += ours ? 1 : 0;
    if (ours && line.starts_with("Rss:")) found.kilobytes += std::stol(line.substr(4));
    if (line.starts_with("VmFlags:")) ours = false;
  }
  return found;
}

}  // namespace

TEST_CASE(
    "api: an optimizer that goes leaves a map and some kB for each rank, as its header says") {
  Job job;
  torch::nn::Linear net(500, 500);
  const auto make_one = [&] {
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    hvd::DistributedOptimizer optimizer(sgd, net->named_parameters());
    net->forward(at::ones({2, 500})).sum().backward();
    optimizer.step();
    net->zero_grad();
  };
  make_one();
  hvd::barrier();  // also what the others' went back from
  const SharedMemory before = shared_memory();
  constexpr int kMore = 5;
  for (int i = 0; i < kMore; ++i) make_one();
  hvd::barrier();
  const SharedMemory after = shared_memory();
  hvd::barrier();
  CHECK(after.maps - before.maps == kMore * hvd::local_size());
  CHECK(after.kilobytes - before.kilobytes <= int64_t{50} * kMore * hvd::local_size());
}

TEST_CASE("api: an optimizer that one rank is refused counts on none") {
  Job job;
  torch::nn::Linear net(2, 2);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  const auto make = [&] { hvd::DistributedOptimizer optimizer(sgd, net->named_parameters()); };
  for (int i = 0; i < 2; ++i) {
    const std::string refused =
        hvd::rank() == 0 ? error_of(make) : error_of([] { hvd::barrier(); });
    CHECK(refused.empty() == (hvd::size() == 1));
  }
  CHECK(error_of(make) == "");
}

TEST_CASE("api: collectives, synchronous, in place and asynchronous") {
  Job job;
  const at::Tensor mine = at::full({2, 3}, double(hvd::rank()));
  CHECK(hvd::allreduce(mine).equal(at::full({2, 3}, mean_rank())));
  CHECK(hvd::allreduce(mine, {.name = "sum", .op = hvd::ReduceOp::kSum, .postscale = 2})
            .equal(at::full({2, 3}, mean_rank() * 2 * hvd::size())));
  const at::Tensor half = hvd::allreduce(mine, {}, hvd::Compression::kFp16);
  CHECK(half.equal(at::full({2, 3}, mean_rank())));
  at::Tensor changed = mine.clone();
  CHECK(hvd::allreduce_(changed).is_same(changed));
  CHECK(changed.equal(at::full({2, 3}, mean_rank())));
  CHECK(hvd::broadcast(mine, hvd::size() - 1).equal(at::full({2, 3}, double(hvd::size() - 1))));
  CHECK(hvd::allgather(mine.select(0, 0)).size(0) == 3 * hvd::size());

  at::Tensor column = at::full({4, 2}, double(hvd::rank())).select(1, 0);  // not contiguous
  hvd::TensorWork in_place = hvd::allreduce_async_(column, {.name = "column"});
  hvd::TensorWork unnamed = hvd::allreduce_async(mine);
  hvd::TensorWork rows = hvd::allgather_async(mine, {.name = "rows"});
  hvd::TensorWork root = hvd::broadcast_async(mine, 0, {.name = "root"});
  CHECK(rows.wait().sizes() == at::IntArrayRef({2 * hvd::size(), 3}));
  CHECK(root.wait().equal(at::zeros({2, 3})));
  CHECK(unnamed.wait().equal(at::full({2, 3}, mean_rank())));
  CHECK(in_place.wait().is_same(column));
  CHECK(column.equal(at::full({4}, mean_rank())));
  CHECK((in_place.done() && unnamed.done() && rows.done()));
  at::Tensor zeros = mine.clone();
  hvd::broadcast_async_(zeros, 0, {.name = "zeros"}).wait();
  CHECK(zeros.equal(at::zeros({2, 3})));
  CHECK(hvd::local_device().is_cpu());
}

TEST_CASE("api: what one rank is refused does not count among its calls without a name") {
  Job job;
  if (hvd::rank() == 0) {
    bool flags[2] = {};
    CHECK(contains(error_of([] { hvd::allreduce_async(at::Tensor()); }), "is undefined"));
    CHECK(contains(error_of([] { hvd::broadcast_async(at::ones({2}), -1); }), "is not a rank"));
    CHECK(contains(error_of([&] { hvd::allreduce_async_(std::span(flags)); }), "bool"));
  }
  const auto work = hvd::allreduce_async(at::full({2}, double(hvd::rank())));
  auto another = hvd::allgather_async(std::vector<int>{hvd::rank()});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!(work.done() && another.done()) && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  REQUIRE((work.done() && another.done()));
  CHECK(hvd::TensorWork(work).wait().equal(at::full({2}, mean_rank())));
  CHECK(another.wait().size() == static_cast<size_t>(hvd::size()));
}

TEST_CASE("api: every form of broadcast_parameters() brings root's, buffers too") {
  Job job;
  torch::nn::BatchNorm1d norm(3);
  const int root = hvd::size() - 1;
  const auto differ = [&](const std::vector<at::Tensor>& tensors) {
    at::NoGradGuard no_grad;
    for (const at::Tensor& one : tensors) one.fill_(hvd::rank() + 1);
  };
  const auto are_roots = [&](const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& one : tensors) CHECK(one.eq(root + 1).all().item<bool>());
  };
  differ(norm->parameters());
  differ(norm->buffers());
  hvd::broadcast_parameters(*norm, root);
  are_roots(norm->parameters());
  CHECK(norm->buffers().size() == 3);
  are_roots(norm->buffers());
  differ(norm->parameters());
  hvd::broadcast_parameters(norm->named_parameters(), root);
  are_roots(norm->parameters());
  differ(norm->parameters());
  hvd::broadcast_parameters(norm->parameters(), root);
  are_roots(norm->parameters());
}

TEST_CASE("api: a model is broadcast, trained, and the same everywhere") {
  Job job;
  torch::nn::Linear net(8, 3);
  hvd::broadcast_parameters(*net, 0);
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01 * (hvd::rank() + 1)));
  hvd::broadcast_optimizer_state(adam, 0);
  CHECK(adam.param_groups()[0].options().get_lr() == 0.01);
  hvd::DistributedOptimizer optimizer(adam, net->named_parameters(),
                                      {.compression = hvd::Compression::kFp16});
  adam.param_groups()[0].options().set_lr(0.02 * (hvd::rank() + 1));
  hvd::broadcast_optimizer_state(optimizer, 0);
  CHECK(adam.param_groups()[0].options().get_lr() == 0.02);
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    net(at::full({4, 8}, double(hvd::rank() + step))).pow(2).mean().backward();
    optimizer.synchronize();
    const auto guard = optimizer.skip_synchronize();
    optimizer.step();
  }
  CHECK(&optimizer.optimizer() == &adam);
  CHECK(optimizer.param_groups().size() == 1);
  const at::Tensor all = hvd::allgather(net->weight.detach().reshape({1, -1}));
  for (int64_t rank = 0; rank < hvd::size(); ++rank) CHECK(all[rank].equal(all[0]));
}

TEST_CASE("api: a DistributedOptimizer belongs to the thread that called init()") {
  Job job;
  torch::nn::Linear net(2, 2);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  std::string error;
  std::jthread([&] {
    error = error_of([&] { hvd::DistributedOptimizer o(sgd, net->named_parameters()); });
  }).join();
  CHECK(contains(error, "in the thread that called hvd::init()"));
}

namespace {

// The exit code of a child that trains on with them: 0 if it is refused each time.
int train_in_child(torch::nn::Linear& net, hvd::DistributedOptimizer& optimizer) {
  const pid_t child = fork();
  if (child == 0) {
    const auto refused = [](const std::string& text) {
      return contains(text, "forked from a rank");
    };
    const std::string backward = error_of([&] { net(at::ones({1, 2})).sum().backward(); });
    net->zero_grad();
    const std::string step = error_of([&] { optimizer.step(); });
    _exit(refused(backward) && refused(step) ? 0 : 1);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child ? status : -1;
}

}  // namespace

TEST_CASE("api: in a forked child backward() and step() throw, and the rank trains on") {
  auto job = std::make_unique<Job>();
  torch::nn::Linear net(2, 2);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  hvd::broadcast_parameters(*net, 0);
  hvd::DistributedOptimizer optimizer(sgd, net->named_parameters());
  const auto train = [&] {
    optimizer.zero_grad();
    net(at::ones({1, 2})).sum().backward();
    optimizer.step();
  };
  train();
  optimizer.zero_grad();
  CHECK(train_in_child(net, optimizer) == 0);
  train();
  CHECK(net->bias.grad().equal(at::ones({2})));
  optimizer.zero_grad();
  job.reset();
  CHECK(train_in_child(net, optimizer) == 0);
}

TEST_CASE("api: gradients and optimizer outlive shutdown()") {
  torch::nn::Linear net(2, 2);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  std::unique_ptr<hvd::DistributedOptimizer> optimizer;
  {
    Job job;
    hvd::broadcast_parameters(*net, 0);
    optimizer = std::make_unique<hvd::DistributedOptimizer>(sgd, net->named_parameters());
    net(at::ones({1, 2})).sum().backward();
    optimizer->step();
  }
  CHECK(net->bias.grad().equal(at::ones({2})));
  const auto backward = [&] { net(at::ones({1, 2})).sum().backward(); };
  for (int round = 0; round < 2; ++round) {
    optimizer->zero_grad();
    CHECK_FALSE(net->bias.grad().defined());
    CHECK(contains(error_of(backward), "shutdown() has ended"));
  }
  CHECK(contains(error_of([&] { optimizer->step(); }), "shutdown() has ended"));
  for (int epoch = 0; epoch < 2; ++epoch) {
    Job job;  // and the next epoch takes the same parameters, with the earlier optimizer still
              // there
    optimizer = std::make_unique<hvd::DistributedOptimizer>(sgd, net->named_parameters());
    CHECK(contains(error_of([&] { hvd::DistributedOptimizer o(sgd, net->named_parameters()); }),
                   "already belongs to a DistributedOptimizer"));
    sgd.zero_grad();
    backward();
    optimizer->step();
    CHECK(net->bias.grad().equal(at::ones({2})));
  }
  optimizer.reset();
  sgd.zero_grad();
  for (int round = 0; round < 2; ++round) backward();
  CHECK(net->bias.grad().equal(at::full({2}, 2.0)));
}
