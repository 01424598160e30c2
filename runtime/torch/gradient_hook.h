// Calls back whenever autograd has accumulated a parameter's gradient.
//
// A tensor has one slot for such a hook, so what was there is kept and called first, and put back
// in the end. The callback comes from whichever thread runs backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace hvd {

class GradientHook {
 public:
  // Throws kInvalidArgument, naming `name`, when the parameter has a GradientHook in use already;
  // one that is in use no more, as `in_use` says from any thread, calls nothing from now on.
  GradientHook(const at::Tensor& parameter, const std::string& name, std::function<void()> callback,
               std::function<bool()> in_use);
  // Waits for a callback under way; none comes afterwards. In a forked child, where it does not
  // wait, backward() throws for as long as it lives.
  ~GradientHook();
  GradientHook(const GradientHook&) = delete;
  GradientHook& operator=(const GradientHook&) = delete;

  static bool is_in_use(const at::Tensor& parameter);

 private:
  struct Target;
  class Installed;

  const at::Tensor parameter_;
  const std::shared_ptr<Target> target_;
};

}  // namespace hvd
