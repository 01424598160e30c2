// <hvd/torch.h> on tensors of a GPU, as a program sees it: shared libraries, the plug-in, ranks
// that hvdrun has started, each with its GPU of the stand-in's.
#include <ATen/ATen.h>
#include <torch/optim/sgd.h>

#include "hvd/hvd.h"
#include "hvd/torch.h"
#include "tests/runtime/torch/device/job.h"

// Last: LibTorch has a CHECK of its own, which ends the program.
#include "tests/support/catch.h"

using namespace hvd;

namespace {

at::Tensor filled(at::IntArrayRef sizes, double value) {
  return at::full(sizes, value, at::TensorOptions(device()));
}

bool is_filled(const at::Tensor& tensor, double value) {
  return tensor.device() == device() && tensor.cpu().eq(value).all().item<bool>();
}

}  // namespace

TEST_CASE("device API: collectives, with names and without, beside those of the CPU") {
  const Job job;
  const double mine = rank() + 1, sum = size() * (size() + 1) / 2.0;
  CHECK(is_filled(allreduce(filled({3}, mine), {.op = ReduceOp::kSum}), sum));
  CHECK(is_filled(allreduce(filled({3}, 2), {}, Compression::kFp16), 2));
  const at::Tensor in_place = filled({4, 3}, mine).t();
  allreduce_(in_place, {.name = "in place", .op = ReduceOp::kSum});
  CHECK(is_filled(in_place, sum));
  CHECK(is_filled(broadcast(filled({2}, mine), size() - 1), size()));
  CHECK(allgather(filled({rank() + 1, 2}, mine)).size(0) == int64_t(sum));
  const TensorWork work = allreduce_async(filled({5}, mine), {.op = ReduceOp::kSum});
  CHECK(allreduce(at::full({2}, mine), {.op = ReduceOp::kSum}).eq(sum).all().item<bool>());
  TensorWork copy = work;
  CHECK(is_filled(copy.wait(), sum));
}

TEST_CASE("device API: what is on CPU here and on a GPU there is an error on every rank") {
  const Job job;
  if (size() > 1) {
    const at::Tensor tensor = rank() == 0 ? at::ones({3}) : filled({3}, 1);
    TensorWork work = allreduce_async(tensor, {.name = "mixed"});
    CHECK_THROWS_WITH(work.wait(), Catch::Contains("\"mixed\"") && Catch::Contains("on a GPU"));
  }
}

TEST_CASE("device API: the same of calls that wait at once, with and without a name") {
  for (const std::string name : {"", "loss"}) {
    const Job job;
    if (size() == 1) return;
    const at::Tensor tensor = rank() == 0 ? at::ones({3}) : filled({3}, 1);
    CHECK_THROWS_WITH(allreduce(tensor, {.name = name}),
                      Catch::Contains("rank 0") && Catch::Contains("on a GPU") &&
                          Catch::Contains("on the same kind of device"));
  }
}

TEST_CASE("device API: a tensor on a GPU that is not the rank's ends the epoch of all by name") {
  const auto broadcast_one = [](const at::Tensor& tensor) {
    broadcast_parameters(std::vector<at::Tensor>{tensor}, 0);
  };
  const auto gather = [](const at::Tensor& tensor) { allgather_async(tensor).wait(); };
  const auto reduce = [](const at::Tensor& tensor) { allreduce(tensor); };
  for (const std::function<void(const at::Tensor&)>& call :
       {std::function<void(const at::Tensor&)>(reduce), {gather}, {broadcast_one}}) {
    const Job job;
    CHECK(is_filled(allreduce(filled({2}, 1), {.op = ReduceOp::kSum}), size()));
    barrier();  // all have their sum, which an abort would end
    const int wrong = size() - 1;
    const c10::Device other = standin_torch_device(local_rank() + 4);
    const at::Tensor tensor =
        rank() == wrong ? at::ones({2}, at::TensorOptions(other)) : filled({2}, 1);
    CHECK_THROWS_WITH(call(tensor), Catch::Contains("this rank uses GPU ") &&
                                        Catch::Contains(", and cannot use GPU "));
  }
}

TEST_CASE("device API: a training from root's parameters and state, the same on all ranks") {
  const Job job;
  at::Tensor weight = at::full({20, 30}, 0.01 * (rank() + 1)).to(device()).requires_grad_();
  at::Tensor bias = at::full({20}, 0.1 * rank()).to(device()).requires_grad_();
  torch::optim::SGD inner({weight, bias},
                          torch::optim::SGDOptions(0.1 * (rank() + 1)).momentum(0.5));
  broadcast_parameters(std::vector<at::Tensor>{weight, bias}, 0);
  torch::OrderedDict<std::string, at::Tensor> named;
  named.insert("weight", weight);
  named.insert("bias", bias);
  DistributedOptimizer optimizer(inner, named);
  broadcast_optimizer_state(optimizer, 0);
  double first = 0, last = 0;
  for (int step = 0; step < 6; ++step) {
    optimizer.zero_grad();
    const at::Tensor x = filled({8, 30}, 0.1 * (rank() + 1));
    const at::Tensor loss = (at::linear(x, weight, bias) - 1).pow(2).mean();
    loss.backward();
    optimizer.step();
    last = allreduce(loss.detach()).item<double>();
    if (step == 0) first = last;
  }
  CHECK(last < first);
  const at::Tensor all = allgather(weight.detach().reshape({1, -1})).cpu();
  for (int k = 0; k < size(); ++k) CHECK(all[k].equal(all[0]));
}
