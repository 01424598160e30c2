// LibTorch on the stand-in's devices: what the other tests of devices build on.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <latch>

#include "tests/collectives/nccl/standin.h"
#include "tests/runtime/torch/device/ranks.h"
#include "tests/runtime/torch/training.h"

namespace hvd {
namespace {

const c10::Device kDevice = standin_torch_device(0);

}  // namespace

TEST_CASE("device operators: copies, views and sums as on the CPU") {
  const at::Tensor x = at::arange(24, at::kFloat).view({2, 3, 4});
  at::Tensor y = x.to(kDevice);
  CHECK(y.device() == kDevice);
  CHECK(same_bits(y.cpu(), x));
  CHECK(same_bits(y.transpose(0, 2).contiguous().cpu(), x.transpose(0, 2)));
  CHECK(same_bits(y.to(at::kHalf).cpu(), x.to(at::kHalf)));
  y.select(1, 2).mul_(3).add_(y.select(1, 0));
  const at::Tensor z = x.clone();
  z.select(1, 2).mul_(3).add_(z.select(1, 0));
  CHECK(same_bits(y.cpu(), z));
  CHECK(same_bits((y + y.mean()).cpu(), z + z.mean()));
  CHECK(y.sum().item<float>() == z.sum().item<float>());
  CHECK(at::zeros({0, 3}, at::TensorOptions(kDevice)).cpu().numel() == 0);
}

TEST_CASE("device operators: only what needs a shape waits for the device") {
  at::Tensor y = at::ones({100}, at::TensorOptions(kDevice));
  const long long before = hvd_standin_count("host_waits", 0);
  for (int k = 0; k < 20; ++k) y.add_(1).copy_(y.clone().to(at::kDouble));
  CHECK(hvd_standin_count("host_waits", 0) == before);
  CHECK(y.sum().item<float>() == 2100);
  CHECK(hvd_standin_count("host_waits", 0) > before);
}

TEST_CASE("device operators: streams run beside each other, but for events") {
  const c10::Stream here = current_standin_stream(kDevice), other = new_standin_stream(kDevice);
  at::Tensor x = at::zeros({1000}, at::TensorOptions(kDevice)), y = at::zeros_like(x);
  wait_for(here);
  for (const bool ordered : {false, true}) {
    std::latch may_begin(1);
    launch(here, {}, [&] { may_begin.wait(); });
    x.add_(1);
    c10::Event event(kDevice.type());
    event.record(here);
    if (ordered) event.block(other);
    {
      const c10::StreamGuard guard(other);
      y.copy_(x);
    }
    if (!ordered) wait_for(other);
    may_begin.count_down();
    const c10::StreamGuard guard(other);
    CHECK(y.sum().item<float>() == (ordered ? 2000 : 0));
    event.block(other);
  }
}

TEST_CASE("device operators: what another stream uses is overwritten unless that was recorded") {
  const c10::Stream here = current_standin_stream(kDevice), other = new_standin_stream(kDevice);
  for (const bool recorded : {false, true}) {
    at::Tensor x = at::full({1000}, 7, at::TensorOptions(kDevice)), y = at::zeros_like(x);
    wait_for(here);
    std::latch may_begin(1);
    launch(other, {}, [&] { may_begin.wait(); });
    const c10::StreamGuard guard(other);
    y.copy_(x);
    if (recorded) x.record_stream(other);
    x.reset();
    wait_for(here);
    may_begin.count_down();
    CHECK(y.eq(7).all().item<bool>() == recorded);
  }
}

TEST_CASE("device operators: a training on the device is that on the CPU, bit for bit") {
  for (const auto& make : {nets::mlp(), nets::shared(), nets::unused()}) {
    const auto on_cpu = make(), on_device = make();
    move_to(*on_device, kDevice);
    const auto a = nets::sgd()(on_cpu->parameters()), b = nets::sgd()(on_device->parameters());
    use_one_thread();
    for (int step = 0; step < 4; ++step) {
      a->zero_grad();
      on_cpu->loss(0, step).backward();
      a->step();
      b->zero_grad();
      on_device->loss(0, step).backward();
      b->step();
    }
    move_to(*on_device, at::kCPU);
    CHECK(first_difference(*on_device, *on_cpu) == "");
  }
}

}  // namespace hvd
