// The compression rule.
#include "runtime/torch/compression.h"

#include <string>

#include "hvd/error.h"

namespace hvd {

at::ScalarType exchanged_type(at::ScalarType type, Compression compression) {
  switch (compression) {
    case Compression::kNone:
      return type;
    case Compression::kFp16:
      return at::isFloatingType(type) ? at::kHalf : type;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "Compression " + std::to_string(static_cast<int>(compression)) +
                  " does not exist; it is one of None (0) and Fp16 (1)");
}

const char* name_of(Compression compression) {
  return compression == Compression::kFp16 ? "fp16" : "none";
}

}  // namespace hvd
