// NCCL among ranks as threads, each with a device of the stand-in's.
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/nccl_reduction.h"
#include "hvd/error.h"
#include "tests/collectives/conformance.h"
#include "tests/nccl/device_ranks.h"
#include "tests/support/extent.h"

namespace hvd {
namespace {

// The rules of standin/nccl_reduce.h: from the last rank down, factors first.
ByteVector nccl_reference(DataType type, const Reduction& reduction,
                          const std::vector<ByteVector>& inputs, const Hosts&) {
  const bool is_float = type == DataType::kFloat16 || type == DataType::kBfloat16 ||
                        type == DataType::kFloat32 || type == DataType::kFloat64;
  Reduction as_sum = reduction;
  if (is_float && (reduction.op == ReduceOp::kAverage || reduction.op == ReduceOp::kSum)) {
    as_sum = {ReduceOp::kSum, reduction.prescale * reduction.postscale, 1};
    if (reduction.op == ReduceOp::kAverage) as_sum.prescale /= static_cast<double>(inputs.size());
  }
  return reference_reduce(type, as_sum, {inputs.rbegin(), inputs.rend()});
}

bool nccl_supports(DataType type, const Reduction& reduction) {
  try {
    nccl_reduction_of(reduction, type, 2);
    return true;
  } catch (const Error&) {
    return false;
  }
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
                     Values::kPlain,
                     nccl_supports});
  return all;
}

}  // namespace hvd
