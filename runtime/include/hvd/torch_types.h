// The options of the LibTorch layer, without LibTorch.
#pragma once

#include <cstddef>

#include "hvd/types.h"

namespace hvd {

enum class Compression {
  kNone,
  kFp16,  // floating gradients travel as float16, half the bytes; .grad keeps its type
};

struct DistributedOptimizerOptions {
  Compression compression = Compression::kNone;
  ReduceOp op = ReduceOp::kAverage;  // or kSum
  int backward_passes_per_step = 1;  // gradients are summed over them, not averaged
  // Gradients are divided by it before the sum and multiplied after it. With kAverage only.
  double gradient_predivide_factor = 1.0;
  // Gradients are exchanged in buckets of about this size, while backward goes on.
  size_t bucket_bytes = size_t{2} << 20;
};

}  // namespace hvd
