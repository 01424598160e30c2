// The body of each instruction set's source: HVD_REDUCE_FUNCTION is the function to define.
#pragma once

#include "collectives/reduce_floats-inl.h"
#include "collectives/reduce_integers-inl.h"

namespace hvd {

void HVD_REDUCE_FUNCTION(const ReduceArguments& arguments) {
  using namespace HWY_NAMESPACE;
  switch (arguments.type) {
    case DataType::kFloat32:
      return reduce_floats<Float32>(arguments);
    case DataType::kFloat64:
      return reduce_floats<Float64>(arguments);
    case DataType::kFloat16:
      return reduce_floats<Float16>(arguments);
    case DataType::kBfloat16:
      return reduce_floats<Bfloat16>(arguments);
    case DataType::kUint8:
      return reduce_integers<uint8_t, uint32_t>(arguments);
    case DataType::kInt8:
      return reduce_integers<int8_t, uint32_t>(arguments);
    case DataType::kInt32:
      return reduce_integers<int32_t, uint32_t>(arguments);
    case DataType::kInt64:
      return reduce_integers<int64_t, uint64_t>(arguments);
    case DataType::kBool:
      return reduce_bools(arguments);
  }
}

}  // namespace hvd
