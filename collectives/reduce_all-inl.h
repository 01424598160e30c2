// The body of each instruction set's source: HVD_REDUCE_FUNCTION is the function to define.
#pragma once

#include "collectives/reduce_floats-inl.h"
#include "collectives/reduce_integers-inl.h"

namespace hvd {

void HVD_REDUCE_FUNCTION(const ReduceArguments& arguments) {
  namespace kernels = HWY_NAMESPACE;
  switch (arguments.type) {
    case DataType::kFloat32:
      return kernels::reduce_floats<kernels::Float32>(arguments);
    case DataType::kFloat64:
      return kernels::reduce_floats<kernels::Float64>(arguments);
    case DataType::kFloat16:
      return kernels::reduce_floats<kernels::Float16>(arguments);
    case DataType::kBfloat16:
      return kernels::reduce_floats<kernels::Bfloat16>(arguments);
    case DataType::kUint8:
      return kernels::reduce_integers<uint8_t, uint32_t>(arguments);
    case DataType::kInt8:
      return kernels::reduce_integers<int8_t, uint32_t>(arguments);
    case DataType::kInt32:
      return kernels::reduce_integers<int32_t, uint32_t>(arguments);
    case DataType::kInt64:
      return kernels::reduce_integers<int64_t, uint64_t>(arguments);
    case DataType::kBool:
      return kernels::reduce_bools(arguments);
  }
}

}  // namespace hvd
