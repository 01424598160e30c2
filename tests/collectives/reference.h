// What a reduction is, once more: one element at a time, in the plainest way, to compare with.
//
// Shares nothing with the kernels: 16-bit floats are rounded by arithmetic on doubles.
#pragma once

#include <cstddef>
#include <vector>

#include "collectives/types.h"

namespace hvd {

using ByteVector = std::vector<std::byte>;

// The reduction over `inputs` (one per rank, in rank order).
ByteVector reference_reduce(DataType type, const Reduction& reduction,
                            const std::vector<ByteVector>& inputs);

enum class Values {
  kPlain,    // finite, of moderate size
  kStrange,  // any bits: denormals, infinities, NaN of every kind
};
// The same for the same arguments, everywhere.
ByteVector random_values(DataType type, size_t count, uint64_t seed, Values values);

}  // namespace hvd
