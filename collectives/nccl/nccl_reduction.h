// Our element types and reductions as NCCL's. Pure.
#pragma once

#include <nccl.h>

#include <cstddef>

#include "collectives/types.h"

namespace hvd {

// bool travels as uint8, of values 0 and 1.
ncclDataType_t nccl_type_of(DataType type);

struct NcclReduction {
  ncclRedOp_t op = ncclSum;
  // Not 1: what each input is multiplied with before it is summed, by an operation that is made for
  // it (ncclRedOpCreatePreMulSum).
  double factor = 1;
};

// Throws kUnsupported, saying what to use instead, where NCCL has no way for it: factors of
// integers, and of Min, Max and Product.
NcclReduction nccl_reduction_of(const Reduction& reduction, DataType type, int ranks);

// `factor` as an element of this type; the bytes that are used are those of the type.
struct NcclScalar {
  alignas(8) std::byte bytes[8];
};
NcclScalar nccl_scalar(double factor, DataType type);

}  // namespace hvd
