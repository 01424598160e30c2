// The compression rule.
#include "runtime/torch/compression.h"

namespace hvd {

at::ScalarType exchanged_type(at::ScalarType type, Compression compression) {
  if (compression == Compression::kFp16 && at::isFloatingType(type)) return at::kHalf;
  return type;
}

const char* name_of(Compression compression) {
  return compression == Compression::kFp16 ? "fp16" : "none";
}

}  // namespace hvd
