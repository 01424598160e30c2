// hvd for LibTorch: the gradients of any torch::optim optimizer averaged over all ranks.
//
//   hvd::init();
//   torch::manual_seed(42);
//   Net model;
//   model->to(hvd::local_device());
//   torch::optim::SGD sgd(model->parameters(), 0.01 * hvd::size());
//   hvd::broadcast_parameters(*model, 0);
//   hvd::broadcast_optimizer_state(sgd, 0);
//   hvd::DistributedOptimizer optimizer(sgd, model->named_parameters());
//   … optimizer.zero_grad(); loss.backward(); optimizer.step();
//
// Names, meanings and defaults are those of horovod.torch. Results are equal, bit for bit, on every
// rank. What throws says so; errors are hvd::Error, and hvd::CommFailure when the world broke.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <memory>
#include <string>
#include <vector>

#include "hvd/hvd.h"
#include "hvd/torch_types.h"

namespace hvd {

// ---- collectives on tensors
//
// Of any shape, contiguous or not, on the CPU or on the rank's one GPU; there as everything else of
// LibTorch's, in the stream that is current where they are called: they return once the operation
// is under way there, and what comes into that stream afterwards sees the result. An error that the
// GPU finds later is thrown by the next call. Those that do not end in _ leave their input alone;
// they are not differentiable yet, so an input that requires a gradient is kUnsupported (detach()
// it). Types: those of <hvd/types.h>; broadcast takes any. Different shapes or types on two ranks
// are an Error on every rank; but a call that is refused for itself (Average of bool; a
// tensor that is sparse, quantized, nested or without memory) enters nothing, and other ranks wait
// for it as for one that was never made. Where this rank cannot use the tensor's GPU (no driver, no
// NCCL, another GPU than its own) all ranks hear of it: CommFailure.

// A tensor to come. Copies share it.
class HVD_API TensorWork {
 public:
  bool done() const;  // on a GPU: also there
  // On a GPU the calling thread's current stream waits, not the thread. Throws what went wrong. May
  // be called again. In-place results are there after the first wait().
  torch::Tensor wait();

  class HVD_HIDDEN Impl;

 private:
  explicit TensorWork(std::shared_ptr<Impl> impl);

  std::shared_ptr<Impl> impl_;
};

// Min and Max of floats on GPUs leave a NaN out, as NCCL does, where CPUs pass it on.
HVD_API torch::Tensor allreduce(const torch::Tensor& tensor, const AllreduceOptions& options = {},
                                Compression compression = Compression::kNone);
HVD_API torch::Tensor allreduce_(const torch::Tensor& tensor, const AllreduceOptions& options = {});
HVD_API TensorWork allreduce_async(const torch::Tensor& tensor,
                                   const AllreduceOptions& options = {});
HVD_API TensorWork allreduce_async_(const torch::Tensor& tensor,
                                    const AllreduceOptions& options = {});

HVD_API torch::Tensor broadcast(const torch::Tensor& tensor, int root,
                                const BroadcastOptions& options = {});
HVD_API torch::Tensor broadcast_(const torch::Tensor& tensor, int root,
                                 const BroadcastOptions& options = {});
HVD_API TensorWork broadcast_async(const torch::Tensor& tensor, int root,
                                   const BroadcastOptions& options = {});
HVD_API TensorWork broadcast_async_(const torch::Tensor& tensor, int root,
                                    const BroadcastOptions& options = {});

// All ranks' rows, in rank order; their numbers may differ. A tensor without dimensions is a row.
// Rows without elements are an Error on every rank.
HVD_API torch::Tensor allgather(const torch::Tensor& tensor, const AllgatherOptions& options = {});
HVD_API TensorWork allgather_async(const torch::Tensor& tensor,
                                   const AllgatherOptions& options = {});

// ---- training

// Where this rank computes: its GPU, where LibTorch sees any and hvd was built for them, else the
// CPU. Of several GPUs that of the local rank, a single one whatever the rank. Says so once, when
// there are GPUs that are not used. Throws kUnavailable where several GPUs are seen, but fewer than
// ranks; of a single one NCCL says at the first operation that ranks have the same.
HVD_API torch::Device local_device();

// The root's values to all ranks, in place; of a module its parameters and buffers. Collectives of
// the init thread.
HVD_API void broadcast_parameters(const torch::nn::Module& module, int root = 0);
HVD_API void broadcast_parameters(
    const torch::OrderedDict<std::string, torch::Tensor>& named_tensors, int root = 0);
HVD_API void broadcast_parameters(const std::vector<torch::Tensor>& tensors, int root = 0);

// A torch::optim optimizer whose gradients are reduced over all ranks before each step.
//
// It holds a reference to the optimizer, which goes on being the one for schedulers and
// checkpoints. Make it, and step it, in the thread that called hvd::init(); every rank makes the
// same ones, and steps them, in the same order; after shutdown() and another init(), new ones,
// which take the parameters over from the earlier ones. The backward_passes_per_step of a step may
// run in several threads at once, and have returned before step(). A parameter that no rank used
// in a step keeps an undefined gradient. After shutdown(), or once a call has thrown CommFailure,
// backward() throws what step() throws for as long as it lives, and for longer where a hook of
// yours stands behind its own.
//
// On a GPU step() returns when its sums are launched: the device applies them. Where a later call
// throws CommFailure a sum may have come to nothing, so parameters and state are undefined then;
// what is to outlast that is saved once the device is through (torch::cuda::synchronize()) and, for
// the others', after a barrier().
//
// A gradient becomes memory that the ranks share, valid as long as the tensor is held; one that is
// kept while the next two steps are made is overwritten: clone() what you keep for longer. That
// memory, as much as all gradients and, where some are kept, once more (step() throws CommFailure
// without room), on a GPU that of the largest bucket besides, goes back with the optimizer and the
// last gradient; a GPU's only when the ranks make their next optimizer, or at shutdown(). What
// other streams do with a gradient has to be joined to the one that runs backward before it is let
// go of: its memory is used again. One memory map, of the 65530 that Linux grants a process, and
// for each rank of the host less than 50 kB and a byte a parameter stay until shutdown(): one
// optimizer for a training, not one for each step. A forked child has none of it. A parameter that
// changes its type (to(kDouble)) makes every later step() throw, on all ranks: make another
// optimizer then.
class HVD_API DistributedOptimizer {
 public:
  using NamedParameters = torch::OrderedDict<std::string, torch::Tensor>;

  // Collective. Throws kInvalidArgument when a parameter of `optimizer` that requires a gradient
  // has no name, or belongs to another DistributedOptimizer of this epoch; when the ranks'
  // parameters differ (the text says in what); kUnsupported for what cannot be exchanged (LBFGS,
  // Adasum, sparse). Who alone is refused so has entered nothing: the others wait for it until it
  // makes another or ends. On a GPU a step is under way when step() returns: where the epoch breaks
  // before it is over there, a later call throws CommFailure, and parameters and the optimizer's
  // state may hold anything, and differ between ranks. Go on from a checkpoint then.
  DistributedOptimizer(torch::optim::Optimizer& optimizer, const NamedParameters& named_parameters,
                       const DistributedOptimizerOptions& options = {});
  // Gives back the parameters' hooks; gradients stay. Between backward() and step() it breaks the
  // epoch on all ranks, which may be waiting for the rest of the step: call synchronize() first.
  // shutdown() may, if buckets are under way that another rank has not entered by then.
  ~DistributedOptimizer();
  DistributedOptimizer(const DistributedOptimizer&) = delete;
  DistributedOptimizer& operator=(const DistributedOptimizer&) = delete;

  // synchronize(), then the wrapped optimizer's step. With a closure: after it, before the step.
  // Throws kInvalidArgument on every rank, and changes no parameter on any, when one rank made a
  // mistake since the last step (it is named): a second backward(), one with create_graph (take
  // gradients of gradients with torch::autograd::grad()), a sparse gradient.
  torch::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr);

  // Waits until every .grad is the result; for clipping and the like. Go on with
  // skip_synchronize(), otherwise step() reduces the results once more (and warns once). Between
  // backward() and this (or step()) gradients are under way, and not to be changed: the step is
  // void then, where a .grad tells of it (another tensor; its version). What writes to
  // .grad().data(), as torch::nn::utils::clip_grad_norm_() does, leaves no trace there. On CPUs the
  // ranks compare some words of each result, other ones in each step: where most of one was
  // changed, so that it is not the same on all ranks, the next step() says it; where few elements
  // were, as by clip_grad_value_(), a later one may, or none. On GPUs nothing is compared.
  void synchronize();

  // While one lives, step() does not synchronize, and refuses gradients that came since
  // synchronize(), a closure's included:
  //   optimizer.synchronize(); clip(…); auto guard = optimizer.skip_synchronize();
  //   optimizer.step();
  class HVD_API SkipSynchronize {
   public:
    ~SkipSynchronize();
    SkipSynchronize(const SkipSynchronize&) = delete;
    SkipSynchronize& operator=(const SkipSynchronize&) = delete;

   private:
    friend class DistributedOptimizer;
    explicit SkipSynchronize(DistributedOptimizer& owner);
    DistributedOptimizer& owner_;
  };
  [[nodiscard]] SkipSynchronize skip_synchronize();

  // Throws kInvalidArgument between backward() and step(): gradients are under way.
  void zero_grad(bool set_to_none = true);

  // Throws kInvalidArgument between backward() and step().
  void set_backward_passes_per_step(int passes);

  torch::optim::Optimizer& optimizer();  // the wrapped one
  std::vector<torch::optim::OptimizerParamGroup>& param_groups();

  class HVD_HIDDEN Impl;

 private:
  explicit DistributedOptimizer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// The root's options (learning rate and so on, of every group) and state to all ranks. Of Adagrad,
// Adam, AdamW, RMSprop and SGD; kUnsupported for others, kInvalidArgument on every rank where the
// ranks' kinds, groups or parameters' types and shapes differ. A collective of the init thread.
HVD_API void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root = 0);
HVD_API void broadcast_optimizer_state(DistributedOptimizer& optimizer, int root = 0);

}  // namespace hvd
