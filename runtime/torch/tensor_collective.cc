// Checks and buffers of tensor collectives.
#include "runtime/torch/tensor_collective.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <optional>
#include <utility>

#include "hvd/error.h"
#include "runtime/engine/text_hash.h"
#include "runtime/torch/device_stream.h"
#include "runtime/torch/element_type.h"
#include "runtime/torch/plain_memory.h"

namespace hvd {
namespace {

const char* name_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::kAllreduce:
      return "allreduce";
    case OperationKind::kAllgather:
      return "allgather";
    case OperationKind::kBroadcast:
      return "broadcast";
    default:
      return "operation";
  }
}

std::string no_room_text(const std::string& title, const char* what, size_t bytes,
                         const std::string& why) {
  return title + ": no room for " + what + " of " + std::to_string(bytes) + " bytes: " + why;
}

int64_t row_elements(const at::Tensor& tensor) {
  int64_t elements = 1;
  for (int64_t d = 1; d < tensor.dim(); ++d) elements *= tensor.size(d);
  return elements;
}

}  // namespace

TensorCollective::TensorCollective(OperationKind kind, std::string name)
    : kind_(kind), inference_(c10::InferenceMode::is_enabled()), name_(std::move(name)) {}

std::string TensorCollective::title() const {
  return std::string(name_of(kind_)) + (name_.empty() ? "" : " \"" + name_ + "\"");
}

void TensorCollective::check(const at::Tensor& tensor, Place place) const {
  const auto refuse = [this](ErrorCode code, const std::string& text) {
    throw Error(code, title() + ": " + text);
  };
  if (!tensor.defined()) refuse(ErrorCode::kInvalidArgument, "the tensor is undefined");
  check_device(tensor, title() + ": the tensor");
  check_plain(tensor, title() + ": the tensor");
  if (tensor.requires_grad() && c10::GradMode::is_enabled())
    refuse(ErrorCode::kUnsupported,
           "the tensor requires a gradient, and collectives are not differentiable yet; detach() "
           "it, or hold a torch::NoGradGuard");
  if (place == Place::kInPlace && at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
    refuse(ErrorCode::kInvalidArgument,
           "several elements of the tensor share memory (expand()); clone() it first");
}

// Where there can be none it is the tensor itself, and expect_copy() throws.
at::Tensor TensorCollective::copy_of(const at::Tensor& tensor, std::optional<at::ScalarType> type) {
  try {
    if (!type) return tensor.clone(at::MemoryFormat::Contiguous);
    return tensor.to(*type, false, /*copy=*/true, at::MemoryFormat::Contiguous);
  } catch (const c10::Error& error) {
    // The CPU's allocator has no type of its own for it.
    const bool is_room =
        tensor.is_cpu() || dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr;
    const size_t bytes =
        static_cast<size_t>(tensor.numel()) * c10::elementSize(type.value_or(tensor.scalar_type()));
    const std::string why = error.what_without_backtrace();
    no_copy_ = is_room ? no_room_text(title(), "a copy of its tensor", bytes, why)
                       : title() + ": its tensor cannot be copied: " + why;
    return tensor;
  }
}

// The others wait for this rank, or will.
void TensorCollective::expect_copy(Engine& engine) const {
  if (no_copy_.empty()) return;
  engine.abort(no_copy_);
  throw Error(ErrorCode::kUnavailable, no_copy_);
}

void TensorCollective::set_buffer(const at::Tensor& tensor, Place place,
                                  std::optional<at::ScalarType> type) {
  at::NoGradGuard no_grad;
  if (place == Place::kNew) {
    target_ = buffer_ = copy_of(tensor.detach(), type);
  } else {
    target_ = tensor;
    // The memory of a conjugate or negative view holds other values than the tensor.
    const bool plain = tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
    buffer_ = plain ? tensor : copy_of(tensor);
  }
  count_ = static_cast<size_t>(buffer_.numel());
  set_shape(hvd::describe(type ? buffer_ : tensor));
}

void TensorCollective::set_shape(std::string dimensions) { shape_ = std::move(dimensions); }

std::shared_ptr<TensorCollective> TensorCollective::allreduce(const at::Tensor& tensor, Place place,
                                                              const Reduction& reduction,
                                                              std::string name,
                                                              std::optional<at::ScalarType> type) {
  std::shared_ptr<TensorCollective> made(
      new TensorCollective(OperationKind::kAllreduce, std::move(name)));
  made->check(tensor, place);
  made->type_ = data_type_of(type.value_or(tensor.scalar_type()), made->title() + ": the tensor");
  made->reduction_ = reduction;
  made->set_buffer(tensor, place, type);
  return made;
}

std::shared_ptr<TensorCollective> TensorCollective::broadcast(const at::Tensor& tensor, Place place,
                                                              int root, std::string name,
                                                              std::string agreed) {
  std::shared_ptr<TensorCollective> made(
      new TensorCollective(OperationKind::kBroadcast, std::move(name)));
  made->check(tensor, place);
  made->root_ = root;
  made->set_buffer(tensor, place);
  made->count_ *= tensor.element_size();  // as bytes, of any type: the shape names it
  if (!agreed.empty()) made->set_shape(std::move(agreed));
  return made;
}

std::shared_ptr<TensorCollective> TensorCollective::allgather(const at::Tensor& tensor,
                                                              std::string name, Place place) {
  std::shared_ptr<TensorCollective> made(
      new TensorCollective(OperationKind::kAllgather, std::move(name)));
  made->check(tensor, Place::kNew);
  made->type_ = data_type_of(tensor.scalar_type(), made->title() + ": the tensor");
  made->set_buffer(tensor.dim() == 0 ? tensor.detach().reshape({1}) : tensor, place);
  std::string shape = hvd::describe(made->buffer_);
  const size_t first = shape.find('[') + 1;
  shape.replace(first, shape.find_first_of(",]", first) - first, "*");  // rows may differ
  made->set_shape(std::move(shape));
  return made;
}

// On whichever thread waits for anything or, on a device, NCCL's. There memory comes in the order
// of the stream that it is had in: in one that the program uses it would be had behind all that
// waits in it.
void* TensorCollective::allocate_parts(std::span<const uint64_t> counts) {
  if (row_elements(buffer_) == 0) return nullptr;  // take_result() says so
  uint64_t elements = 0;
  for (const uint64_t count : counts) elements += count;
  std::vector<int64_t> sizes = buffer_.sizes().vec();
  sizes[0] = static_cast<int64_t>(elements) / row_elements(buffer_);
  const c10::InferenceMode mode(inference_);
  std::optional<c10::StreamGuard> in_stream;
  if (events_) in_stream.emplace(quiet_stream(device()));
  try {
    target_ = at::empty(sizes, buffer_.options());
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::kUnavailable,
                no_room_text(title(), "its result", elements * size_of(type_),
                             error.what_without_backtrace()));
  }
  if (events_) events_->begin_behind_also(in_stream->current_stream().native_handle());
  return target_.data_ptr();
}

void TensorCollective::describe(Operation& operation) {
  operation.kind = kind_;
  if (kind_ == OperationKind::kAllgather) {
    operation.input = {buffer_.data_ptr(), count_, type_};
    operation.result.type = type_;
    operation.allocate = [this](std::span<const uint64_t> counts) {
      return allocate_parts(counts);
    };
  } else {
    operation.result = {buffer_.data_ptr(), count_, type_};
  }
  operation.reduction = reduction_;
  operation.root = root_;
  operation.shape_hash = text_hash(shape_);
  operation.name = name_;
  operation.shape = shape_;
}

void TensorCollective::check_root(const World& world) const {
  if (root_ >= 0 && root_ < world.size) return;
  throw Error(ErrorCode::kInvalidArgument, title() + ": root " + std::to_string(root_) +
                                               " is not a rank; there are " +
                                               std::to_string(world.size));
}

at::Tensor TensorCollective::run(Engine& engine,
                                 const std::shared_ptr<TensorCollective>& collective) {
  collective->check_root(engine.world());
  if (!engine.on_init_thread() || !collective->device().is_cpu()) {
    submit(engine, collective)->wait();
  } else {
    collective->expect_copy(engine);
    Operation operation;
    collective->describe(operation);
    engine.run(operation);
  }
  return collective->take_result();
}

std::unique_ptr<Submission> TensorCollective::submission(
    Engine& engine, const std::shared_ptr<TensorCollective>& collective) {
  collective->check_root(engine.world());
  collective->expect_copy(engine);
  auto submission = std::make_unique<Submission>();
  submission->name = collective->name_;
  submission->keep_alive = collective;
  collective->describe(submission->operation);
  if (!collective->device().is_cpu()) collective->begin_on_device(engine, submission->operation);
  return submission;
}

void TensorCollective::begin_on_device(Engine& engine, Operation& operation) {
  DeviceBackend* used = engine.device();
  if (used == nullptr || used->ordinal() != device().index())
    throw Error(
        ErrorCode::kUnavailable,
        title() + ": the tensor is on " + device().str() +
            (used == nullptr ? ", and this rank uses no GPU"
                             : ", and this rank uses GPU " + std::to_string(used->ordinal())));
  leave_buckets(*used, operation);
  expect_copy(engine);
  events_ = std::make_shared<DeviceEvents>(*used);
  events_->begin_behind(current_stream(device()).native_handle());
  events_->give_to(operation);
}

// A gradient that lies in its bucket: there memory is registered, which all ranks would have to use
// alike, and each rank's gradient lies where it happens to.
void TensorCollective::leave_buckets(const DeviceBackend& used, Operation& operation) {
  if (buffer_.numel() == 0 || !used.has(buffer_.data_ptr())) return;
  at::NoGradGuard no_grad;
  buffer_ = copy_of(buffer_);
  describe(operation);
}

std::shared_ptr<Work> TensorCollective::submit(
    Engine& engine, const std::shared_ptr<TensorCollective>& collective) {
  return engine.submit(submission(engine, collective));
}

// How many rows without elements there are is not exchanged; that no rank has any elements is known
// only now.
at::Tensor TensorCollective::gathered() const {
  if (row_elements(buffer_) != 0) return target_;
  throw Error(ErrorCode::kInvalidArgument, title() + ": a row of " + hvd::describe(buffer_) +
                                               " has no elements; gather another dimension");
}

void TensorCollective::join_current_stream() {
  const c10::Stream stream = current_stream(device());
  events_->join(stream.native_handle());
  // What was had in another stream may be freed while this one uses it.
  for (const at::Tensor* one : {&buffer_, &target_})
    if (one->defined()) record_stream(*one, stream);
  if (taken_in_ && *taken_in_ != stream) queue_behind(stream, *taken_in_);
  if (!taken_in_) taken_in_ = stream;
}

at::Tensor TensorCollective::take_result() {
  MutexLock lock(mutex_);
  if (events_) join_current_stream();
  if (kind_ == OperationKind::kAllgather) return gathered();
  if (taken_) return target_;
  at::NoGradGuard no_grad;
  if (!buffer_.is_same(target_)) {
    target_.copy_(buffer_);
  } else if (!target_.is_inference()) {
    target_.unsafeGetTensorImpl()->bump_version();  // autograd has to see that it was written
  }
  taken_ = true;
  return target_;
}

}  // namespace hvd
