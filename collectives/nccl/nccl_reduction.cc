#include "collectives/nccl/nccl_reduction.h"

#include <cmath>
#include <cstring>

#include "hvd/float16.h"

namespace hvd {
namespace {

template <class T>
NcclScalar scalar_of(T value) {
  NcclScalar scalar{};
  std::memcpy(scalar.bytes, &value, sizeof value);
  return scalar;
}

// As what the arithmetic of the type computes with has it.
double accumulated(double factor, DataType type) {
  return is_float(type) && type != DataType::kFloat64
             ? static_cast<double>(static_cast<float>(factor))
             : factor;
}

bool is_exact(double factor, DataType type) {
  const auto single = static_cast<float>(factor);
  if (type == DataType::kFloat16) return static_cast<float>(float16(single)) == single;
  if (type == DataType::kBfloat16) return static_cast<float>(bfloat16(single)) == single;
  return true;
}

NcclReduction float_sum(const Reduction& reduction, DataType type, int ranks) {
  const bool average = reduction.op == ReduceOp::kAverage;
  const bool plain = reduction.prescale == 1 && reduction.postscale == 1;
  if (plain && !average) return {};
  const double factor = reduction.prescale * reduction.postscale / (average ? ranks : 1);
  if (!is_exact(factor, type)) return {.before = {.pre = factor}};
  return plain ? NcclReduction{.op = ncclAvg} : NcclReduction{.factor = factor};
}

// Of many inputs the least stays the least when all are multiplied, and the greatest becomes it by
// a negative factor: so all is done where an input is read, and rounded once. Not so with factors
// that make all elements equal.
NcclReduction extreme(const Reduction& reduction, DataType type) {
  const double post = accumulated(reduction.postscale, type);
  const bool least = reduction.op == ReduceOp::kMin;
  if (post == 0 || !std::isfinite(post))
    return {.op = least ? ncclMin : ncclMax,
            .before = {.pre = reduction.prescale},
            .after = {.post = reduction.postscale}};
  return {.op = least == (post > 0) ? ncclMin : ncclMax,
          .before = {reduction.prescale, reduction.postscale}};
}

NcclReduction of_bool(ReduceOp op) {
  const bool either = op == ReduceOp::kSum || op == ReduceOp::kMax;
  return {.op = either ? ncclMax : ncclMin};
}

}  // namespace

NcclReduction nccl_reduction_of(const Reduction& reduction, DataType type, int ranks) {
  const Factors before{.pre = reduction.prescale};
  Factors after{.post = reduction.postscale};
  if (type == DataType::kBool) return of_bool(reduction.op);
  switch (reduction.op) {
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return extreme(reduction, type);
    case ReduceOp::kProduct:
      return {.op = ncclProd, .before = before, .after = after};
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kAdasum:  // refused before
      break;
  }
  if (is_float(type)) return float_sum(reduction, type, ranks);
  if (reduction.op != ReduceOp::kAverage) return {.before = before, .after = after};
  if (reduction.postscale == 1) return {.op = ncclAvg, .before = before};
  after.divisor = static_cast<uint32_t>(ranks);
  return {.before = before, .after = after};
}

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
