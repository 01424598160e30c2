// <hvd/torch.h> over the current Context.
#include <c10/core/GradMode.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "hvd/torch.h"
#include "runtime/base/present_gpus.h"
#include "runtime/context.h"
#include "runtime/torch/broadcast.h"
#include "runtime/torch/compression.h"
#include "runtime/torch/device_stream.h"
#include "runtime/torch/optimizer.h"
#include "runtime/torch/own_gpu.h"
#include "runtime/torch/tensor_collective.h"
#include "runtime/torch/unused_gpus.h"

namespace hvd {
namespace {

using Place = TensorCollective::Place;
using Collective = std::shared_ptr<TensorCollective>;

Reduction reduction_of(const AllreduceOptions& options) {
  return {.op = options.op, .prescale = options.prescale, .postscale = options.postscale};
}

std::unique_ptr<BucketList> make_bucket_list(const BucketListSpec& spec) {
  const auto current = context();
  if (!current->engine().on_init_thread()) {
    throw Error(ErrorCode::kInvalidArgument,
                "a DistributedOptimizer is made, and given further parameters, in the thread that "
                "called hvd::init()");
  }
  if (spec.device >= 0) current->use_device(spec.device);
  BucketListSpec numbered = spec;
  numbered.name += " " + std::to_string(current->lists() + 1);
  std::unique_ptr<BucketList> list = current->engine().make_bucket_list(numbered);
  current->count_list();
  return list;
}

NamedTensors numbered(const std::vector<torch::Tensor>& tensors) {
  NamedTensors named;
  for (size_t i = 0; i < tensors.size(); ++i)
    named.emplace_back("parameter " + std::to_string(i), tensors[i]);
  return named;
}

void append(NamedTensors& to, const torch::OrderedDict<std::string, torch::Tensor>& tensors) {
  for (const auto& item : tensors) to.emplace_back(item.key(), item.value());
}

}  // namespace

class TensorWork::Impl {
 public:
  Impl(std::shared_ptr<Work> work, Collective collective)
      : work_(std::move(work)), collective_(std::move(collective)) {}
  static TensorWork make(std::shared_ptr<Work> work, Collective collective) {
    return TensorWork(std::make_shared<Impl>(std::move(work), std::move(collective)));
  }
  bool done() const { return work_->done(); }
  torch::Tensor wait() {
    work_->wait();
    return collective_->take_result();
  }

 private:
  const std::shared_ptr<Work> work_;
  const Collective collective_;
};

TensorWork::TensorWork(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
bool TensorWork::done() const { return impl_->done(); }
torch::Tensor TensorWork::wait() { return impl_->wait(); }

namespace {

TensorWork submit(const char* kind, const Collective& collective) {
  const auto current = context();
  if (!collective->device().is_cpu()) current->use_device(collective->device().index());
  auto work = current->submit(TensorCollective::submission(current->engine(), collective), kind);
  return TensorWork::Impl::make(std::move(work), collective);
}

void use_device_of(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.defined() || tensor.device().is_cpu()) continue;
    check_device(tensor, "\"" + name + "\"");
    context()->use_device(tensor.device().index());
  }
}

void broadcast_all(const NamedTensors& tensors, int root) {
  use_device_of(tensors);
  broadcast_tensors(context()->engine(), tensors, root);
}

torch::Tensor run(const char* kind, const Collective& collective) {
  if (!collective->device().is_cpu()) return submit(kind, collective).wait();
  return TensorCollective::run(context()->engine(), collective);
}

torch::Tensor run_allreduce(const torch::Tensor& tensor, Place place,
                            const AllreduceOptions& options) {
  return run("allreduce",
             TensorCollective::allreduce(tensor, place, reduction_of(options), options.name));
}

TensorWork submit_allreduce(const torch::Tensor& tensor, Place place,
                            const AllreduceOptions& options) {
  return submit("allreduce",
                TensorCollective::allreduce(tensor, place, reduction_of(options), options.name));
}

torch::Tensor run_broadcast(const torch::Tensor& tensor, Place place, int root,
                            const BroadcastOptions& options) {
  return run("broadcast", TensorCollective::broadcast(tensor, place, root, options.name));
}

TensorWork submit_broadcast(const torch::Tensor& tensor, Place place, int root,
                            const BroadcastOptions& options) {
  return submit("broadcast", TensorCollective::broadcast(tensor, place, root, options.name));
}

}  // namespace

torch::Tensor allreduce(const torch::Tensor& tensor, const AllreduceOptions& options,
                        Compression compression) {
  if (!tensor.defined()) return run_allreduce(tensor, Place::kNew, options);  // its named error
  const at::ScalarType type = exchanged_type(tensor.scalar_type(), compression);
  if (type == tensor.scalar_type()) return run_allreduce(tensor, Place::kNew, options);
  const auto exchanged =
      TensorCollective::allreduce(tensor, Place::kNew, reduction_of(options), options.name, type);
  return run("allreduce", exchanged).to(tensor.scalar_type());
}

torch::Tensor allreduce_(const torch::Tensor& tensor, const AllreduceOptions& options) {
  return run_allreduce(tensor, Place::kInPlace, options);
}

TensorWork allreduce_async(const torch::Tensor& tensor, const AllreduceOptions& options) {
  return submit_allreduce(tensor, Place::kNew, options);
}

TensorWork allreduce_async_(const torch::Tensor& tensor, const AllreduceOptions& options) {
  return submit_allreduce(tensor, Place::kInPlace, options);
}

torch::Tensor broadcast(const torch::Tensor& tensor, int root, const BroadcastOptions& options) {
  return run_broadcast(tensor, Place::kNew, root, options);
}

torch::Tensor broadcast_(const torch::Tensor& tensor, int root, const BroadcastOptions& options) {
  return run_broadcast(tensor, Place::kInPlace, root, options);
}

TensorWork broadcast_async(const torch::Tensor& tensor, int root, const BroadcastOptions& options) {
  return submit_broadcast(tensor, Place::kNew, root, options);
}

TensorWork broadcast_async_(const torch::Tensor& tensor, int root,
                            const BroadcastOptions& options) {
  return submit_broadcast(tensor, Place::kInPlace, root, options);
}

torch::Tensor allgather(const torch::Tensor& tensor, const AllgatherOptions& options) {
  return run("allgather", TensorCollective::allgather(tensor, options.name, Place::kLent));
}

TensorWork allgather_async(const torch::Tensor& tensor, const AllgatherOptions& options) {
  return submit("allgather", TensorCollective::allgather(tensor, options.name));
}

torch::Device local_device() {
  static UnusedGpus unused;
  const auto current = context();
  // LibTorch sees GPUs only if the program links its CUDA part, so the driver's files count, too.
  const auto seen = static_cast<int>(torch::cuda::device_count());
  if (seen > 0 && cuda_built())
    return {torch::kCUDA,
            static_cast<c10::DeviceIndex>(own_gpu(seen, local_rank(), current->shares_gpu()))};
  const std::optional<std::string>& visible = current->visible_devices();
  const int gpus = hides_gpus(visible) ? 0 : std::max(seen, present_gpus());
  if (gpus == 0 && !current->expects_gpu()) return torch::Device(torch::kCPU);
  const std::string why =
      why_no_gpu(cuda_built(), c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA),
                 current->why_no_cuda(), visible);
  if (current->expects_gpu())
    throw Error(ErrorCode::kUnavailable, "hvdrun was told to use GPUs, but " + why +
                                             "; leave out --devices or --share-gpu, "
                                             "and say -np, to train on the CPU");
  const std::string words = unused.words(gpus, local_rank(), why);
  if (!words.empty()) std::fprintf(stderr, "hvd: %s\n", words.c_str());
  return torch::Device(torch::kCPU);
}

void broadcast_parameters(const torch::nn::Module& module, int root) {
  NamedTensors tensors;
  append(tensors, module.named_parameters());
  append(tensors, module.named_buffers());
  broadcast_all(tensors, root);
}

void broadcast_parameters(const torch::OrderedDict<std::string, torch::Tensor>& named_tensors,
                          int root) {
  NamedTensors tensors;
  append(tensors, named_tensors);
  broadcast_all(tensors, root);
}

void broadcast_parameters(const std::vector<torch::Tensor>& tensors, int root) {
  broadcast_all(numbered(tensors), root);
}

void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root) {
  broadcast_optimizer(context()->engine(), optimizer, root);
}

void broadcast_optimizer_state(DistributedOptimizer& optimizer, int root) {
  broadcast_optimizer_state(optimizer.optimizer(), root);
}

DistributedOptimizer::DistributedOptimizer(torch::optim::Optimizer& optimizer,
                                           const NamedParameters& named_parameters,
                                           const DistributedOptimizerOptions& options)
    : impl_(std::make_unique<Impl>(optimizer, named_parameters, options, make_bucket_list)) {}

}  // namespace hvd
