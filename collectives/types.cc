#include "collectives/types.h"

#include <iterator>
#include <string>

#include "runtime/base/error.h"

namespace hvd {

const char* name_of(DataType type) {
  constexpr const char* kNames[kDataTypes] = {"uint8",    "int8",    "int32",   "int64", "float16",
                                              "bfloat16", "float32", "float64", "bool"};
  return kNames[static_cast<size_t>(type)];
}

const char* name_of(ReduceOp op) {
  constexpr const char* kNames[] = {"Average", "Sum", "Adasum", "Min", "Max", "Product"};
  const auto index = static_cast<size_t>(op);
  return index < std::size(kNames) ? kNames[index] : "an operation unknown to hvd";
}

void check_reduction(const Reduction& reduction, DataType type) {
  if (reduction.op > ReduceOp::kProduct)
    throw Error(ErrorCode::kInvalidArgument,
                "ReduceOp " + std::to_string(static_cast<int>(reduction.op)) +
                    " does not exist; it is one of Average (0), Sum (1), Min (3), Max (4) and "
                    "Product (5)");
  if (reduction.op == ReduceOp::kAdasum)
    throw Error(ErrorCode::kUnsupported, "Adasum is not supported yet; use Average or Sum instead");
  if (type != DataType::kBool) return;
  if (reduction.op == ReduceOp::kAverage)
    throw Error(ErrorCode::kInvalidArgument,
                "Average of bool is not defined; use Sum or Max (or), Product or Min (and), or "
                "convert the tensor first");
  if (reduction.prescale != 1 || reduction.postscale != 1)
    throw Error(ErrorCode::kInvalidArgument,
                "bool cannot be scaled; leave prescale and postscale at 1 or convert the tensor "
                "first");
}

}  // namespace hvd
