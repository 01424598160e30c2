// The hook in a tensor's slot, and the way back out of it.
#include "runtime/torch/gradient_hook.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/mutex.h"
#include "runtime/base/process_mark.h"

namespace hvd {

using torch::autograd::PostAccumulateGradHook;

// Outlives the GradientHook when somebody chained a hook of theirs behind ours, and the hook in the
// tensor's slot when somebody put another one there.
struct GradientHook::Target {
  // A child that was forked meanwhile finds the mutex locked for ever.
  bool in_child() const { return process.in_child(); }

  const ProcessMark process;
  std::atomic<bool> calls{true};  // there is a callback: for such a child
  Mutex mutex;
  // Empty once the GradientHook is gone, or retired; only before that may `in_use` be asked.
  std::function<void()> callback GUARDED_BY(mutex);
  std::function<bool()> in_use GUARDED_BY(mutex);
};

class GradientHook::Installed final : public PostAccumulateGradHook {
 public:
  Installed(std::shared_ptr<Target> target, std::unique_ptr<PostAccumulateGradHook> earlier)
      : target_(std::move(target)), earlier_(std::move(earlier)) {}

  void operator()(const at::Tensor& parameter) override {
    if (earlier_) (*earlier_)(parameter);
    if (target_->in_child()) return refuse_in_child();
    MutexLock lock(target_->mutex);
    if (target_->callback) target_->callback();
  }
  const std::shared_ptr<Target>& target() const { return target_; }
  // Calls nothing any more; returns what was there before.
  std::unique_ptr<PostAccumulateGradHook> retire() {
    target_->calls = false;
    MutexLock lock(target_->mutex);
    target_->callback = nullptr;
    return std::move(earlier_);
  }

 private:
  void refuse_in_child() const {
    if (target_->calls) throw_forked();
  }

  const std::shared_ptr<Target> target_;
  std::unique_ptr<PostAccumulateGradHook> earlier_;
};

bool GradientHook::is_in_use(const at::Tensor& parameter) {
  auto* ours =
      dynamic_cast<Installed*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
  if (ours == nullptr || ours->target()->in_child()) return false;
  MutexLock lock(ours->target()->mutex);
  return ours->target()->callback && ours->target()->in_use();
}

GradientHook::GradientHook(const at::Tensor& parameter, const std::string& name,
                           std::function<void()> callback, std::function<bool()> in_use)
    : parameter_(parameter), target_(std::make_shared<Target>()) {
  if (is_in_use(parameter)) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "parameter \"" + name +
            "\" already belongs to a DistributedOptimizer; give each parameter to one only");
  }
  {
    MutexLock lock(target_->mutex);
    target_->callback = std::move(callback);
    target_->in_use = std::move(in_use);
  }
  auto earlier = std::move(torch::autograd::impl::post_acc_grad_hooks(parameter));
  if (auto* retired = dynamic_cast<Installed*>(earlier.get())) earlier = retired->retire();
  torch::autograd::impl::set_post_acc_grad_hooks(
      parameter, std::make_unique<Installed>(target_, std::move(earlier)));
}

GradientHook::~GradientHook() {
  target_->calls = false;
  if (target_->in_child()) return;
  {
    MutexLock lock(target_->mutex);
    target_->callback = nullptr;
  }
  auto& slot = torch::autograd::impl::post_acc_grad_hooks(parameter_);
  auto* ours = dynamic_cast<Installed*>(slot.get());
  if (ours == nullptr || ours->target() != target_) return;  // replaced, or somebody's behind ours
  auto earlier = ours->retire();
  slot = std::move(earlier);
}

}  // namespace hvd
