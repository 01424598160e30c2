// Our element types and reductions as NCCL's. Pure.
#pragma once

#include <nccl.h>

#include <cstddef>

#include "collectives/nccl/elements.h"
#include "collectives/types.h"

namespace hvd {

// bool travels as uint8, of values 0 and 1.
ncclDataType_t nccl_type_of(DataType type);

// `op`, with what surrounds it: NCCL multiplies inputs of sums of floats only, and only with what
// such a float can be. All else is scaled by kernels, whose results are the elements' type again.
struct NcclReduction {
  ncclRedOp_t op = ncclSum;
  // Not 1: what each input is multiplied with before it is summed, by an operation that is made for
  // it (ncclRedOpCreatePreMulSum).
  double factor = 1;
  Factors before = {}, after = {};  // of the input in its place, and of the result
};

// `reduction` has a meaning for `type`: check_reduction().
//
// NCCL has a factor of 16 bits where the elements have (src/enqueue.cc, hostToDevRedOp): 1/3 is off
// by 1/512 as bfloat16, by which each average would be wrong, so such a factor is a kernel's.
NcclReduction nccl_reduction_of(const Reduction& reduction, DataType type, int ranks);

// `factor` as an element of this type; the bytes that are used are those of the type.
struct NcclScalar {
  alignas(8) std::byte bytes[8];
};
NcclScalar nccl_scalar(double factor, DataType type);

}  // namespace hvd
