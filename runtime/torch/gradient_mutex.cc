// A mutex of LibTorch's, and whether it is to be taken.
#include "runtime/torch/gradient_mutex.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <pthread.h>

#include <memory>
#include <mutex>
#include <utility>

namespace hvd {
namespace {

using torch::autograd::Node;
using torch::autograd::impl::grad_accumulator;

// It is protected: a derived class may name it.
struct OfAccumulator : Node {
  static std::mutex& mutex(Node& node) { return node.*(&OfAccumulator::mutex_); }
};

struct TryLock final : torch::autograd::PostAccumulateGradHook {
  explicit TryLock(bool& held) : held_(held) {}
  void operator()(const at::Tensor& tensor) override {
    std::mutex& mutex = OfAccumulator::mutex(*grad_accumulator(tensor));
    // POSIX's call may come from the thread that holds it.
    held_ = pthread_mutex_trylock(mutex.native_handle()) != 0;
    if (!held_) mutex.unlock();
  }
  bool& held_;
};

bool try_in_hook() {
  bool held = false;
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  const at::Tensor tensor = at::zeros({1}).requires_grad_();
  const auto accumulator = grad_accumulator(tensor);
  torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::make_unique<TryLock>(held));
  (*accumulator)({at::zeros({1})});
  return held;
}

// LibTorch counts references in a shared_ptr, or, as 2.15, in the node: either is held.
std::shared_ptr<Node> held_accumulator(const at::Tensor& parameter) {
  auto counted = grad_accumulator(parameter);
  const auto holder = std::make_shared<decltype(counted)>(std::move(counted));
  return {holder, holder->get()};
}

// As earlier LibTorches do. Another thread's hook that waits for ours holds its parameter's then.
bool hooks_hold_it() {
  static const bool they_do = try_in_hook();
  return they_do;
}

}  // namespace

GradientMutex::GradientMutex(const at::Tensor& parameter)
    : accumulator_(held_accumulator(parameter)) {
  hooks_hold_it();  // asked here, not first in a hook
}

void GradientMutex::lock() const {
  if (!hooks_hold_it()) OfAccumulator::mutex(*accumulator_).lock();
}

void GradientMutex::unlock() const {
  if (!hooks_hold_it()) OfAccumulator::mutex(*accumulator_).unlock();
}

}  // namespace hvd
