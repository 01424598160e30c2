// DistributedOptimizer: what is checked, compared and agreed at step boundaries.
#include "runtime/torch/optimizer.h"

#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <cstdio>
#include <unordered_map>
#include <utility>

#include "runtime/torch/element_type.h"

namespace hvd {
namespace {

void check_options(const DistributedOptimizerOptions& options) {
  const auto refuse = [](ErrorCode code, const std::string& text) {
    throw Error(code, "DistributedOptimizer: " + text);
  };
  if (options.op == ReduceOp::kAdasum)
    refuse(ErrorCode::kUnsupported, "op Adasum is not supported yet; use Average or Sum");
  if (options.op != ReduceOp::kAverage && options.op != ReduceOp::kSum)
    refuse(ErrorCode::kInvalidArgument,
           std::string("op ") + name_of(options.op) + " makes no gradient; use Average or Sum");
  if (options.backward_passes_per_step < 1)
    refuse(ErrorCode::kInvalidArgument, "backward_passes_per_step is " +
                                            std::to_string(options.backward_passes_per_step) +
                                            "; it has to be 1 or more");
  // It and what it is divided by, or divides, have to be float32 numbers.
  const double factor = options.gradient_predivide_factor;
  if (!(factor >= 1e-30 && factor <= 1e30)) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", factor);
    refuse(ErrorCode::kInvalidArgument, std::string("gradient_predivide_factor is ") + text +
                                            "; it has to be from 1e-30 to 1e30");
  }
  if (factor != 1 && options.op != ReduceOp::kAverage)
    refuse(ErrorCode::kInvalidArgument, "gradient_predivide_factor works with op Average only");
}

// The parameters of `inner` that require a gradient, in the order of its groups, by their names;
// one that a module lists under several only once.
NamedTensors name_parameters(const torch::optim::Optimizer& inner,
                             const DistributedOptimizer::NamedParameters& named) {
  std::unordered_map<const at::TensorImpl*, std::string> names;
  for (const auto& item : named) names.emplace(item.value().unsafeGetTensorImpl(), item.key());
  std::unordered_set<const at::TensorImpl*> taken;
  NamedTensors result;
  size_t position = 0;
  for (const auto& group : inner.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const size_t index = position++;
      if (!parameter.requires_grad()) continue;
      const auto found = names.find(parameter.unsafeGetTensorImpl());
      if (found == names.end()) {
        throw Error(ErrorCode::kInvalidArgument,
                    "the optimizer's parameter " + std::to_string(index) + ", " +
                        describe(parameter) +
                        ", is not among the named parameters; pass the named_parameters() of all "
                        "modules that it trains");
      }
      if (taken.insert(found->first).second) result.emplace_back(found->second, parameter);
    }
  }
  if (result.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "DistributedOptimizer: the optimizer has no parameter that requires a gradient");
  }
  return result;
}

Additions additions_of(const NamedTensors& added) {
  Additions additions{static_cast<uint32_t>(added.size()), {}};
  try {
    for (const auto& [label, tensor] : added) Buckets::check_parameter(label, tensor);
  } catch (const std::exception& error) {
    additions.refusal = error.what();
  }
  return additions;
}

// What wrote there left no other trace; see GradientSlot::is_as_sent().
std::string difference_of(const StepVerdict& verdict) {
  return "the gradients of the step before were not the same on rank " +
         std::to_string(verdict.digest_of) + " and on rank " + std::to_string(verdict.another_of) +
         ": something changed them between backward() and step(), while they were under way; call "
         "synchronize() before you change any (as to clip them), and step() under "
         "skip_synchronize(). The parameters differ between ranks by now: go on from a checkpoint";
}

// Once: the optimizers taken here evaluate their closure once, before they look at gradients.
torch::Tensor evaluate(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) return {};
  at::AutoGradMode grad_mode(true);
  return closure();
}

}  // namespace

DistributedOptimizer::Impl::Impl(torch::optim::Optimizer& inner,
                                 const NamedParameters& named_parameters,
                                 const DistributedOptimizerOptions& options, MakeBucketList make)
    : inner_(inner), make_(std::move(make)), options_(options) {
  check_options(options);
  if (dynamic_cast<torch::optim::LBFGS*>(&inner) != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "DistributedOptimizer: LBFGS decides from each rank's own loss how often it "
                "evaluates, so ranks would part; use another optimizer");
  }
  add_set("DistributedOptimizer", name_parameters(inner, named_parameters));
}

void DistributedOptimizer::Impl::add_set(std::string_view name, const NamedTensors& parameters) {
  sets_.push_back(std::make_unique<Buckets>(name, parameters, options_, make_));
  for (const auto& [label, tensor] : parameters) known_.insert(tensor.unsafeGetTensorImpl());
}

// Those that came by add_param_group(), or require a gradient only now.
NamedTensors DistributedOptimizer::Impl::new_parameters() const {
  std::unordered_set<const at::TensorImpl*> taken;
  NamedTensors result;
  for (size_t g = 0; g < inner_.param_groups().size(); ++g) {
    const auto& parameters = inner_.param_groups()[g].params();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::TensorImpl* const impl = parameters[i].unsafeGetTensorImpl();
      if (!parameters[i].requires_grad() || known_.contains(impl)) continue;
      if (taken.insert(impl).second)
        result.emplace_back("group" + std::to_string(g) + "." + std::to_string(i), parameters[i]);
    }
  }
  return result;
}

// The control words say how many each rank wants to add. Only when all want to add some can they
// compare them, which is collective.
void DistributedOptimizer::Impl::compare_additions(const std::vector<uint32_t>& all,
                                                   size_t mine) const {
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if ((all[rank] == 0) == (mine == 0)) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "this rank adds " + std::to_string(mine) +
                    " parameters to the optimizer in this step, rank " + std::to_string(rank) +
                    " adds " + std::to_string(all[rank]) +
                    "; add the same parameters on all ranks before the same step");
  }
}

// First of all sets what the ranks do together, so that an error of this rank alone keeps no other
// one waiting.
void DistributedOptimizer::Impl::synchronize() {
  const NamedTensors added = new_parameters();
  std::vector<StepVerdict> verdicts;  // by set
  std::string poison;
  const auto finish = [&](Buckets& set, const Additions& additions) {
    verdicts.push_back(set.finish(additions));
    const StepVerdict& verdict = verdicts.back();
    if (poison.empty()) poison = verdict.poison;
    if (poison.empty() && verdict.another_of >= 0) poison = difference_of(verdict);
  };
  finish(*sets_[0], additions_of(added));
  for (size_t set = 1; set < sets_.size(); ++set) finish(*sets_[set], {});
  if (poison.empty()) {
    compare_additions(verdicts[0].additions, added.size());
    if (!added.empty()) {
      add_set("DistributedOptimizer addition", added);
      finish(*sets_.back(), {});
    }
  }
  if (!poison.empty())
    throw Error(ErrorCode::kInvalidArgument, "this step is void on every rank: " + poison);
  for (size_t set = 0; set < sets_.size(); ++set) sets_[set]->take_results(verdicts[set]);
  synchronized_ = true;
}

torch::Tensor DistributedOptimizer::Impl::step(
    const torch::optim::Optimizer::LossClosure& closure) {
  if (skip_guards_ == 0) return step_synchronized(closure);
  torch::Tensor loss = evaluate(closure);
  if (any_unreduced()) {  // the closure's, too
    throw Error(ErrorCode::kInvalidArgument,
                "step() under skip_synchronize() but gradients came since the last synchronize(); "
                "call synchronize() first");
  }
  synchronized_ = false;
  inner_.step();
  return loss;
}

torch::Tensor DistributedOptimizer::Impl::step_synchronized(
    const torch::optim::Optimizer::LossClosure& closure) {
  torch::Tensor loss = evaluate(closure);
  if (synchronized_ && !warned_ && !in_flight()) {  // those of a skipped step are gone
    warned_ = true;
    TORCH_WARN(
        "optimizer.step() called without optimizer.skip_synchronize() after "
        "optimizer.synchronize(): the gradients are reduced twice. Hold the guard that "
        "skip_synchronize() returns while calling step().");
  }
  synchronize();
  synchronized_ = false;
  inner_.step();
  return loss;
}

bool DistributedOptimizer::Impl::in_flight() const {
  for (const auto& set : sets_)
    if (set->in_flight()) return true;
  return false;
}

// Also those of parameters that no set has yet: nothing waits for their gradients.
bool DistributedOptimizer::Impl::any_unreduced() const {
  return in_flight() || std::ranges::any_of(new_parameters(), [](const auto& parameter) {
           return parameter.second.grad().defined();
         });
}

void DistributedOptimizer::Impl::zero_grad(bool set_to_none) {
  if (!ended() && in_flight()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "zero_grad() between backward() and step(): gradients are under way; call step() or "
        "synchronize() first");
  }
  inner_.zero_grad(set_to_none);
}

void DistributedOptimizer::Impl::set_backward_passes_per_step(int passes) {
  DistributedOptimizerOptions changed = options_;
  changed.backward_passes_per_step = passes;
  check_options(changed);
  if (!ended() && in_flight()) {
    throw Error(ErrorCode::kInvalidArgument,
                "set_backward_passes_per_step() between backward() and step(); call step() first");
  }
  options_ = changed;
  for (const auto& set : sets_) set->set_passes_per_step(passes);
}

DistributedOptimizer::DistributedOptimizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DistributedOptimizer::~DistributedOptimizer() = default;

torch::Tensor DistributedOptimizer::step(torch::optim::Optimizer::LossClosure closure) {
  return impl_->step(closure);
}
void DistributedOptimizer::synchronize() { impl_->synchronize(); }
void DistributedOptimizer::zero_grad(bool set_to_none) { impl_->zero_grad(set_to_none); }
void DistributedOptimizer::set_backward_passes_per_step(int passes) {
  impl_->set_backward_passes_per_step(passes);
}
torch::optim::Optimizer& DistributedOptimizer::optimizer() { return impl_->inner(); }
std::vector<torch::optim::OptimizerParamGroup>& DistributedOptimizer::param_groups() {
  return impl_->inner().param_groups();
}

DistributedOptimizer::SkipSynchronize DistributedOptimizer::skip_synchronize() {
  return SkipSynchronize(*this);
}
DistributedOptimizer::SkipSynchronize::SkipSynchronize(DistributedOptimizer& owner)
    : owner_(owner) {
  owner_.impl_->add_skip_guard();
}
DistributedOptimizer::SkipSynchronize::~SkipSynchronize() { owner_.impl_->remove_skip_guard(); }

}  // namespace hvd
