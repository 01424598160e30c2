// DistributedOptimizer's inside: sets of buckets, one more for each time that parameters came
// later.
#pragma once

#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hvd/torch.h"
#include "runtime/torch/buckets.h"

namespace hvd {

class DistributedOptimizer::Impl {
 public:
  Impl(torch::optim::Optimizer& inner, const NamedParameters& named_parameters,
       const DistributedOptimizerOptions& options, MakeBucketList make);
  // The public face of one with a data path of its own, for tests and benchmarks.
  static std::unique_ptr<DistributedOptimizer> face(std::unique_ptr<Impl> impl) {
    return std::unique_ptr<DistributedOptimizer>(new DistributedOptimizer(std::move(impl)));
  }

  torch::Tensor step(const torch::optim::Optimizer::LossClosure& closure);
  void synchronize();
  void zero_grad(bool set_to_none);
  void set_backward_passes_per_step(int passes);
  void add_skip_guard() { ++skip_guards_; }
  void remove_skip_guard() { --skip_guards_; }

  torch::optim::Optimizer& inner() { return inner_; }
  const Buckets& buckets(size_t set) const { return *sets_[set]; }
  size_t sets() const { return sets_.size(); }

 private:
  void add_set(std::string_view name, const NamedTensors& parameters);
  NamedTensors new_parameters() const;
  void compare_additions(const std::vector<uint32_t>& all, size_t mine) const;
  bool in_flight() const;
  bool any_unreduced() const;
  bool ended() const { return sets_[0]->list().ended(); }  // all sets are of one epoch
  torch::Tensor step_synchronized(const torch::optim::Optimizer::LossClosure& closure);

  torch::optim::Optimizer& inner_;
  const MakeBucketList make_;
  DistributedOptimizerOptions options_;
  std::vector<std::unique_ptr<Buckets>> sets_;
  std::unordered_set<const at::TensorImpl*> known_;  // in one of the sets, which hold them
  int skip_guards_ = 0;                              // that live
  bool synchronized_ = false;                        // by the user, since the last step
  bool warned_ = false;
};

}  // namespace hvd
