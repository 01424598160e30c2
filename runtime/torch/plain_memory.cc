// What LibTorch has besides plain memory.
#include "runtime/torch/plain_memory.h"

#include <c10/core/Layout.h>

#include <sstream>

#include "hvd/error.h"

namespace hvd {
namespace {

std::string name_of(at::Layout layout) {
  std::ostringstream text;
  text << layout;
  return text.str();
}

// Empty: it is. A nested tensor says that it is strided, too.
std::string why_not_plain(const at::Tensor& tensor) {
  if (tensor.is_nested()) return "is nested; unbind() it first";
  switch (tensor.layout()) {
    case at::kStrided:
      break;
    case at::kSparse:
    case at::kSparseCsr:
    case at::kSparseCsc:
    case at::kSparseBsr:
    case at::kSparseBsc:
      return "is sparse; make it dense first (to_dense(), or sparse=false where it is made)";
    default:
      return "has layout " + name_of(tensor.layout()) + "; call to_dense() first";
  }
  if (tensor.is_quantized())
    return "is quantized, and its scale and zero point are not sent; call dequantize() or "
           "int_repr() first";
  const bool has_some = tensor.has_storage() && !tensor._is_zerotensor();
  if (!has_some || !tensor.unsafeGetTensorImpl()->storage_initialized())
    return "has no memory of its own (as at::_efficientzerotensor()); clone() it first";
  return "";
}

}  // namespace

void check_plain(const at::Tensor& tensor, const std::string& title) {
  const std::string why = why_not_plain(tensor);
  if (!why.empty()) throw Error(ErrorCode::kUnsupported, title + " " + why);
}

}  // namespace hvd
