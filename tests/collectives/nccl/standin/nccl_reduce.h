// What the stand-in's reductions are, so that a test can compute the same bits.
//
// The last rank's value is taken first, then those of the ranks before it, down to rank 0: another
// order than ours. 16-bit floats are accumulated in fp32, and rounded once, to the nearest. Sums
// and products of integers wrap. ncclAvg is the sum divided toward zero for integers; for floats
// each value is multiplied with 1/n first, as with a scalar of ncclRedOpCreatePreMulSum(): factor
// and product are of the values' type (src/enqueue.cc, hostToDevRedOp; src/device/reduce_kernel.h,
// FuncPreMulSum).
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hvd {

// In place of an operation of ncclRedOpCreatePreMulSum(), whose number is a rank's own.
constexpr int kPreMulSum = 1000;

struct Contribution {
  const std::byte* values = nullptr;
  uint64_t scalar = 0;  // the bits of it, for kPreMulSum
};

// 0: a type that it does not know.
size_t bytes_of(ncclDataType_t type);

// `inputs` in rank order.
std::vector<std::byte> reduce(ncclDataType_t type, int op, size_t count,
                              const std::vector<Contribution>& inputs);

}  // namespace hvd
