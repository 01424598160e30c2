// NCCL among ranks as threads, each with a device of the stand-in's.
#include "collectives/nccl/nccl_communicator.h"
#include "tests/collectives/conformance.h"
#include "tests/collectives/nccl/device_ranks.h"
#include "tests/support/extent.h"

namespace hvd {
namespace {

std::vector<ByteVector> each_scaled(DataType type, double factor, std::vector<ByteVector> inputs) {
  for (ByteVector& input : inputs)
    input = reference_reduce(type, {ReduceOp::kSum, factor, 1}, {input});
  return inputs;
}

// The rules of standin/nccl_reduce.h: from the last rank down, factors first. Those of 16-bit
// floats round to their type.
ByteVector nccl_reference(DataType type, const Reduction& reduction,
                          const std::vector<ByteVector>& inputs, const Hosts&) {
  const std::vector<ByteVector> down(inputs.rbegin(), inputs.rend());
  const bool is_short = type == DataType::kFloat16 || type == DataType::kBfloat16;
  const bool is_float = is_short || type == DataType::kFloat32 || type == DataType::kFloat64;
  if (is_float && (reduction.op == ReduceOp::kAverage || reduction.op == ReduceOp::kSum)) {
    double factor = reduction.prescale * reduction.postscale;
    if (reduction.op == ReduceOp::kAverage) factor /= static_cast<double>(inputs.size());
    if (!is_short) return reference_reduce(type, {ReduceOp::kSum, factor, 1}, down);
    return reference_reduce(type, {.op = ReduceOp::kSum}, each_scaled(type, factor, down));
  }
  if (!is_short || reduction.op != ReduceOp::kProduct)
    return reference_reduce(type, reduction, down);
  const ByteVector product =
      reference_reduce(type, {.op = reduction.op}, each_scaled(type, reduction.prescale, down));
  return each_scaled(type, reduction.postscale, {product})[0];
}

}  // namespace

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (int ranks : {1, 2, 3, 4, 8})
    if (ranks <= ranks_max())
      all.push_back({"NCCL, " + std::to_string(ranks) + " ranks",
                     {ranks},
                     staged_nccl_factory(),
                     nccl_reference,
                     nullptr,
                     Values::kPlain});
  return all;
}

}  // namespace hvd
