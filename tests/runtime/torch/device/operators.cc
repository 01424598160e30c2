#include "tests/runtime/torch/device/operators.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#include "tests/collectives/nccl/standin.h"
#include "tests/runtime/torch/device/memory.h"

namespace hvd {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

bool is_ours(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_privateuseone();
}

c10::Stream stream_of(const at::Tensor& tensor) { return current_standin_stream(tensor.device()); }

// --- Memory and shapes.

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> type,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_generic(sizes, c10::GetAllocator(at::kPrivateUse1),
                                   DispatchKeySet(DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> type, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(c10::device_or_default(device));
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(at::kPrivateUse1),
                                           DispatchKeySet(DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(type));
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef sizes) {
  return at::native::view(self, sizes);
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return at::native::_reshape_alias(self, sizes, strides);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset,
                        at::IntArrayRef sizes, at::IntArrayRef strides) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return self;
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  record_use(self.storage().data_ptr(), stream);
}

// --- Copies.

// The CPU's view of a tensor's memory, to be read and written in the tensor's stream.
at::Tensor lend_to_host(const at::Tensor& tensor) {
  const auto options = tensor.options().device(at::kCPU);
  if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  at::Tensor lent = at::from_blob(hvd_standin_memory(tensor.data_ptr()), tensor.sizes(),
                                  tensor.strides(), options);
  lent._set_neg(tensor.is_neg());
  lent._set_conj(tensor.is_conj());
  return lent;
}

bool lie_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.is_non_overlapping_and_dense() &&
         a.is_neg() == b.is_neg() && a.is_conj() == b.is_conj();
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (!is_ours(to)) {
    wait_for(stream_of(from));
    to.copy_(lend_to_host(from));
  } else if (!is_ours(from) || from.device() != to.device()) {
    // By the host, which may use its tensor again at once.
    launch(stream_of(to), {to.data_ptr()},
           [target = lend_to_host(to), source = is_ours(from) ? from.cpu() : from.clone()] {
             const at::AutoDispatchBelowADInplaceOrView inside;
             target.copy_(source);
           });
  } else if (lie_alike(from, to)) {
    copy_within(stream_of(to), to.data_ptr(), from.data_ptr(), to.nbytes());
  } else {
    launch(stream_of(to), {to.data_ptr(), from.data_ptr()},
           [target = lend_to_host(to), source = lend_to_host(from)] {
             const at::AutoDispatchBelowADInplaceOrView inside;
             target.copy_(source);
           });
  }
  return to;
}

// --- Everything else.

bool writes(const c10::AliasInfo* alias) { return alias != nullptr && alias->isWrite(); }

// An operator's call, with the CPU's views in place of the device's tensors.
class HostCall {
 public:
  HostCall(const c10::OperatorHandle& op, torch::jit::Stack& stack) : op_(op) {
    const size_t count = op.schema().arguments().size();
    arguments_.assign(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    torch::jit::drop(stack, count);
    for (c10::IValue& argument : arguments_) lend(argument);
    TORCH_CHECK(device_, op.schema().operator_name(), " has no tensor on a device");
  }

  c10::Device device() const { return *device_; }
  bool only_writes() const {
    for (const c10::Argument& result : op_.schema().returns())
      if (!writes(result.alias_info())) return false;
    return true;
  }
  void launch_in(const c10::Stream& stream) const {
    launch(stream, touched_, [op = op_, arguments = arguments_] { compute(op, arguments); });
  }
  torch::jit::Stack results() const { return compute(op_, arguments_); }
  // The tensor that was given for a result that is written in place.
  c10::IValue original_of(const c10::Argument& result) const {
    const auto& schema = op_.schema().arguments();
    for (size_t k = 0; k < schema.size(); ++k)
      if (schema[k].alias_info() != nullptr && *schema[k].alias_info() == *result.alias_info())
        return originals_[k];
    TORCH_CHECK(false, op_.schema().operator_name(), " returns what it was not given");
  }

 private:
  static torch::jit::Stack compute(const c10::OperatorHandle& op, torch::jit::Stack stack) {
    const at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), &stack);
    return stack;
  }
  at::Tensor lend(const at::Tensor& tensor) {
    if (!is_ours(tensor)) return tensor;
    device_ = tensor.device();
    touched_.push_back(tensor.data_ptr());
    return lend_to_host(tensor);
  }
  void lend(c10::IValue& argument) {
    originals_.push_back(argument);
    if (argument.isTensor()) {
      argument = lend(argument.toTensor());
    } else if (argument.isTensorList()) {
      c10::List<at::Tensor> lent;
      for (const at::Tensor& tensor : argument.toTensorVector()) lent.push_back(lend(tensor));
      argument = lent;
    } else if (argument.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> lent;
      for (const auto& tensor : argument.toOptionalTensorVector())
        lent.push_back(tensor ? std::optional(lend(*tensor)) : std::nullopt);
      argument = lent;
    } else if (argument.isDevice()) {
      device_ = argument.toDevice();
      argument = c10::Device(at::kCPU);
    }
  }

  const c10::OperatorHandle op_;
  torch::jit::Stack arguments_, originals_;
  std::vector<const void*> touched_;
  std::optional<c10::Device> device_;
};

c10::IValue bring_back(const c10::IValue& result, c10::Device device) {
  if (result.isTensor()) {
    const at::Tensor& tensor = result.toTensor();
    return tensor.defined() ? tensor.to(device) : tensor;
  }
  if (!result.isTensorList()) return result;
  c10::List<at::Tensor> all;
  for (const at::Tensor& tensor : result.toTensorVector()) all.push_back(tensor.to(device));
  return all;
}

void compute_by_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const HostCall call(op, *stack);
  const c10::DeviceGuard guard(call.device());
  const c10::Stream stream = current_standin_stream(call.device());
  const auto& returns = op.schema().returns();
  torch::jit::Stack results(returns.size());
  if (call.only_writes()) {
    call.launch_in(stream);
  } else {
    wait_for(stream);
    results = call.results();
  }
  for (size_t k = 0; k < returns.size(); ++k) {
    const bool in_place = writes(returns[k].alias_info());
    TORCH_CHECK(in_place || returns[k].alias_info() == nullptr, op.schema().operator_name(),
                " makes a view, which no host can");
    stack->push_back(in_place ? call.original_of(returns[k])
                              : bring_back(results[k], call.device()));
  }
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("view", view);
  library.impl("as_strided", as_strided);
  library.impl("_reshape_alias", reshape_alias);
  library.impl("set_.source_Storage_storage_offset", set_storage);
  library.impl("record_stream", record_stream);
  library.impl("_copy_from", copy_from);
}

// Tensors that negate or conjugate what their memory holds come to copy_from() as they are.
TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_by_host>());
}

}  // namespace

c10::Device standin_torch_device(int ordinal) {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(ordinal)};
}

}  // namespace hvd
