// The arithmetic for every type: what each instruction set's source defines its function with.
#pragma once

#include "collectives/reduce_floats-inl.h"
#include "collectives/reduce_integers-inl.h"

namespace hvd::HWY_NAMESPACE {

inline void reduce_all(const ReduceArguments& arguments) {
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

}  // namespace hvd::HWY_NAMESPACE
