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
  // Gradients are exchanged in buckets of about this size, while backward goes on. 0: of 2 MiB, and
  // of 25 MiB on GPUs.
  size_t bucket_bytes = 0;
};

}  // namespace hvd
