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

TEST_CASE("device API: a tensor on a GPU that is not the rank's is refused, the next one is not") {
  const Job job;
  const AllreduceOptions sum{.op = ReduceOp::kSum};
  CHECK(is_filled(allreduce(filled({2}, 1), sum), size()));
  const c10::Device other = standin_torch_device(local_rank() + 4);
  const at::Tensor elsewhere = at::ones({2}, at::TensorOptions(other));
  const std::string refusal = "this rank uses GPU " + std::to_string(local_rank()) +
                              ", and cannot use GPU " + std::to_string(other.index());
  CHECK_THROWS_WITH(allreduce(elsewhere, sum), Catch::Contains(refusal));
  CHECK_THROWS_WITH(allgather_async(elsewhere), Catch::Contains(refusal));
  CHECK_THROWS_WITH(broadcast_parameters(std::vector<at::Tensor>{elsewhere}, 0),
                    Catch::Contains(refusal));
  CHECK(is_filled(allreduce(filled({2}, 1), sum), size()));
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
