#include "runtime/torch/tensor_copies.h"

#include <ATen/ops/mul.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <span>

#include "runtime/torch/device_stream.h"
#include "runtime/torch/element_type.h"
#include "runtime/torch/strides.h"

namespace hvd {
namespace {

// As those of aten::_foreach_copy_.
std::vector<c10::IValue> inputs_of(std::span<const TensorCopy> copies) {
  std::vector<at::Tensor> to, from;
  for (const TensorCopy& copy : copies) {
    to.push_back(copy.to);
    from.push_back(copy.from);
  }
  return {to, from};
}

void cast_all(std::span<const TensorCopy> copies, std::span<const Cast> casts,
              DeviceBackend& device, double factor) {
  RECORD_FUNCTION("hvd::cast", inputs_of(copies));
  device.cast(casts, factor, current_stream(copies[0].to.device()).native_handle());
  // Autograd has to see that they were written.
  for (const TensorCopy& copy : copies)
    if (!copy.to.is_inference()) copy.to.unsafeGetTensorImpl()->bump_version();
}

// With the kernel's bits.
void copy_plainly(const TensorCopy& copy, double factor) {
  if (factor == 1) {
    copy.to.copy_(copy.from);
  } else {
    const auto type = copy.from.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    copy.to.copy_(at::mul(copy.from.to(type), factor));
  }
}

}  // namespace

std::optional<Cast> cast_of(const TensorCopy& copy) {
  const auto& [to, from] = copy;
  if (to.is_cpu() || to.device() != from.device() || !from.has_storage() || to.is_neg() ||
      from.is_neg() || !from.is_non_overlapping_and_dense() || to.sizes() != from.sizes() ||
      !same_strides(to.sizes(), to.strides(), from.strides()))
    return {};
  const DataType to_type = data_type_of(to.scalar_type(), "a gradient");
  const DataType from_type = data_type_of(from.scalar_type(), "a gradient");
  if (!is_float(to_type) || !is_float(from_type)) return {};
  const auto count = static_cast<size_t>(to.numel());
  return Cast{{from.const_data_ptr(), count, from_type}, {to.mutable_data_ptr(), count, to_type}};
}

void make_copies(std::vector<TensorCopy> copies, DeviceBackend* device, double factor) {
  if (copies.empty()) return;
  at::NoGradGuard no_grad;
  const bool by_kernel = device != nullptr && device->can_cast();
  std::vector<Cast> casts;
  std::erase_if(copies, [&](const TensorCopy& copy) {
    const auto cast = by_kernel ? cast_of(copy) : std::nullopt;
    if (cast)
      casts.push_back(*cast);
    else
      copy_plainly(copy, factor);
    return !cast;
  });
  if (!casts.empty()) cast_all(copies, casts, *device, factor);
}

}  // namespace hvd
