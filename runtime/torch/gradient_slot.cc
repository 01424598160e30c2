// How a gradient gets into its slot, and who can see the memory.
#include "runtime/torch/gradient_slot.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <utility>

#include "hvd/error.h"
#include "runtime/torch/element_type.h"
#include "runtime/torch/plain_memory.h"
#include "runtime/torch/stream_copy.h"
#include "runtime/torch/strides.h"

namespace hvd {
namespace {

// Where it begins, also of one without elements, which has no data_ptr().
const void* memory_of(const at::Tensor& tensor) {
  const auto* storage = static_cast<const std::byte*>(tensor.storage().data());
  return storage + static_cast<size_t>(tensor.storage_offset()) * tensor.element_size();
}

}  // namespace

std::vector<int64_t> gradient_strides(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return at::empty_like(parameter, at::MemoryFormat::Contiguous).strides().vec();
}

GradientSlot::GradientSlot(std::string name, at::Tensor parameter, at::ScalarType type, Memory home,
                           bool streamed)
    : name_(std::move(name)),
      parameter_(std::move(parameter)),
      type_(type),
      registered_type_(parameter_.scalar_type()),
      sizes_(parameter_.sizes().vec()),
      strides_(gradient_strides(parameter_)),
      mutex_(parameter_),
      streamed_(streamed),
      memory_{std::move(home), {}} {}

void GradientSlot::check_gradient() const {
  const at::Tensor& gradient = this->gradient();
  if (gradient.device() != parameter_.device()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the gradient of \"" + name_ + "\" is on " + gradient.device().str() +
                    ", and the parameter on " + parameter_.device().str());
  }
  check_plain(gradient, "the gradient of \"" + name_ + "\"");
  // backward(…, create_graph=true), or set so by hand. The memory that ranks share has no graph.
  if (gradient.requires_grad()) {
    throw Error(ErrorCode::kUnsupported,
                "the gradient of \"" + name_ +
                    "\" requires a gradient itself (create_graph), and a step exchanges values "
                    "only; call backward() without create_graph, and take gradients of gradients "
                    "with torch::autograd::grad()");
  }
  if (gradient.scalar_type() != registered_type_ || gradient.sizes() != sizes_ ||
      parameter_.scalar_type() != registered_type_) {
    throw Error(ErrorCode::kInvalidArgument,
                "the gradient of \"" + name_ + "\" is " + describe(gradient) +
                    " but the parameter was registered as " + describe(registered_type_, sizes_) +
                    "; make a new DistributedOptimizer after changing a parameter's type or shape");
  }
}

// Another one is on the same storage, whose count tells of those who kept what they saw by the
// last.
at::Tensor GradientSlot::make_view(Home home) {
  const at::TensorOptions options = parameter_.options().dtype(type_).requires_grad(false);
  at::Storage& storage = storages_[static_cast<size_t>(home)];
  if (!storage || storage.data() != address(home)) {
    at::Tensor made = at::for_blob(address(home), sizes_)
                          .strides(strides_)
                          .deleter([keep = memory_[static_cast<size_t>(home)].holder](void*) {})
                          .options(options)
                          .target_device(parameter_.device())
                          .make_tensor();
    storage = made.storage();
    return made;
  }
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), options.computeDispatchKey(), options.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes_, strides_);
  return made;
}

// A user's set_data() or resize_() may have turned the tensor that we lent to other memory.
bool GradientSlot::is_intact(const at::Tensor& view, Home home) const {
  return memory_of(view) == address(home) && view.sizes() == sizes_ && view.strides() == strides_;
}

const at::Tensor& GradientSlot::view(Home home) {
  at::Tensor& cached = views_[static_cast<size_t>(home)];
  if (!cached.defined() || !is_intact(cached, home)) cached = make_view(home);
  return cached;
}

bool GradientSlot::lies_at(Home home) const {
  const at::Tensor& gradient = this->gradient();
  return gradient.defined() && gradient.has_storage() && gradient.sizes() == sizes_ &&
         memory_of(gradient) == address(home) && same_strides(sizes_, gradient.strides(), strides_);
}

bool GradientSlot::can_use(Home home) {
  if (is_cast() || lies_at(home) || address(home) == nullptr) return true;
  const at::Tensor& v = view(home);  // its counts of one and two are ours
  return v.use_count() == 1 && v.storage().use_count() == 2;
}

void GradientSlot::put(Home home, std::vector<TensorCopy>& copies, bool all) {
  at::NoGradGuard no_grad;
  at::Tensor& gradient = this->gradient();
  const at::Tensor& v = view(home);
  if (!gradient.defined()) {
    v.zero_();
    return;
  }
  if (lies_at(home) && !is_cast()) {
    if (all) copies.push_back({gradient, gradient});
    return;
  }
  const bool has_address = v.numel() != 0;
  if (!is_cast() && has_address && gradient.is_cpu() && !gradient.is_neg() &&
      gradient.is_non_overlapping_and_dense() &&
      same_strides(sizes_, gradient.strides(), strides_)) {
    auto* to = static_cast<std::byte*>(v.data_ptr());
    const auto* from = static_cast<const std::byte*>(gradient.data_ptr());
    if (streamed_)
      stream_copy(to, from, v.nbytes());
    else
      std::memcpy(to, from, v.nbytes());
  } else {
    copies.push_back({v, gradient});
  }
  if (!is_cast()) gradient = v;
}

uint32_t GradientSlot::version() const {
  const at::Tensor& gradient = this->gradient();
  if (!gradient.defined() || gradient.is_inference()) return 0;
  return gradient.unsafeGetTensorImpl()->version_counter().current_version();
}

void GradientSlot::note_sent() {
  sent_ = gradient().getIntrusivePtr();
  sent_version_ = version();
}

bool GradientSlot::is_as_sent() const {
  return gradient().unsafeGetTensorImpl() == sent_._unsafe_get_target() &&
         version() == sent_version_;
}

// For a result that is copied. Users set .grad; set_data() on it leaves no trace.
bool GradientSlot::has_room(const at::Tensor& gradient) const {
  return gradient.defined() && gradient.layout() == at::kStrided &&
         gradient.device() == parameter_.device() && gradient.scalar_type() == registered_type_ &&
         gradient.sizes() == sizes_ && !gradient.is_inference() &&
         !may_overlap(gradient.sizes(), gradient.strides());
}

void GradientSlot::take_result(Home home, bool used, std::vector<TensorCopy>& copies) {
  if (!used) return;
  at::NoGradGuard no_grad;
  if (is_cast()) {
    at::Tensor& gradient = this->gradient();
    // What no result can be written to was the user's: it stays as it is.
    if (!has_room(gradient))
      gradient = at::empty_strided(sizes_, strides_, parameter_.options().requires_grad(false));
    copies.push_back({gradient, view(home)});
  } else if (!lies_at(home)) {
    gradient() = view(home);
  }
}

}  // namespace hvd
