#include "collectives/nccl/nccl_reduction.h"

#include <cstring>
#include <string>

#include "hvd/error.h"
#include "hvd/float16.h"

namespace hvd {
namespace {

bool is_float(DataType type) {
  return type == DataType::kFloat16 || type == DataType::kBfloat16 || type == DataType::kFloat32 ||
         type == DataType::kFloat64;
}

template <class T>
NcclScalar scalar_of(T value) {
  NcclScalar scalar{};
  std::memcpy(scalar.bytes, &value, sizeof value);
  return scalar;
}

}  // namespace

ncclDataType_t nccl_type_of(DataType type) {
  switch (type) {
    case DataType::kBool:
    case DataType::kUint8:
      return ncclUint8;
    case DataType::kInt8:
      return ncclInt8;
    case DataType::kInt32:
      return ncclInt32;
    case DataType::kInt64:
      return ncclInt64;
    case DataType::kFloat16:
      return ncclFloat16;
    case DataType::kBfloat16:
      return ncclBfloat16;
    case DataType::kFloat32:
      return ncclFloat32;
    case DataType::kFloat64:
      break;
  }
  return ncclFloat64;
}

NcclReduction nccl_reduction_of(const Reduction& reduction, DataType type, int ranks) {
  const double factors = reduction.prescale * reduction.postscale;
  const bool plain = reduction.prescale == 1 && reduction.postscale == 1;
  const bool sums = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kAverage;
  if (!plain && !(sums && is_float(type)))
    throw Error(ErrorCode::kUnsupported,
                std::string("prescale and postscale of ") + name_of(type) + " " +
                    name_of(reduction.op) +
                    " are not supported on GPUs; scale the tensor, or reduce it on the CPU");
  switch (reduction.op) {
    case ReduceOp::kSum:
      return type == DataType::kBool ? NcclReduction{.op = ncclMax}
                                     : NcclReduction{ncclSum, factors};
    case ReduceOp::kAverage:
      return plain ? NcclReduction{.op = ncclAvg} : NcclReduction{ncclSum, factors / ranks};
    case ReduceOp::kMin:
      return {.op = ncclMin};
    case ReduceOp::kMax:
      return {.op = ncclMax};
    case ReduceOp::kAdasum:  // refused before: check_reduction()
    case ReduceOp::kProduct:
      break;
  }
  return {.op = type == DataType::kBool ? ncclMin : ncclProd};
}

NcclScalar nccl_scalar(double factor, DataType type) {
  switch (type) {
    case DataType::kFloat16:
      return scalar_of(float16(static_cast<float>(factor)));
    case DataType::kBfloat16:
      return scalar_of(bfloat16(static_cast<float>(factor)));
    case DataType::kFloat32:
      return scalar_of(static_cast<float>(factor));
    default:
      return scalar_of(factor);
  }
}

}  // namespace hvd
