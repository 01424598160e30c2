// Reductions and buffers, on top of the public element types (<hvd/types.h>).
#pragma once

#include <cstddef>
#include <cstdint>

#include "hvd/types.h"

namespace hvd {

// The result is postscale * op over ranks of (prescale * input). Factors are applied in the
// accumulator, so that nothing is rounded twice; Average's 1/n is one of them.
struct Reduction {
  ReduceOp op = ReduceOp::kAverage;
  double prescale = 1;
  double postscale = 1;
};

// Throws kInvalidArgument or kUnsupported, saying what to use instead, when `reduction` has no
// meaning for `type`. Before start(): every rank finds it alone.
void check_reduction(const Reduction& reduction, DataType type);

constexpr bool is_float(DataType type) {
  return type == DataType::kFloat16 || type == DataType::kBfloat16 || type == DataType::kFloat32 ||
         type == DataType::kFloat64;
}

struct Buffer {
  void* data = nullptr;
  size_t count = 0;  // elements
  DataType type = DataType::kFloat32;
  size_t bytes() const { return count * size_of(type); }
};

struct ConstBuffer {
  const void* data = nullptr;
  size_t count = 0;
  DataType type = DataType::kFloat32;
  size_t bytes() const { return count * size_of(type); }
};

// Elements of a floating type that are copied to another place, or stay in theirs, each rounded to
// the type there; as many in both.
struct Cast {
  ConstBuffer from;
  Buffer to;
};

}  // namespace hvd
