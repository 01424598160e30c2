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

// Two sources, each an input or the sum of earlier inputs, of a reduction over `inputs`: as
// reduce_hop(), whose comment says where factors go.
struct ReferenceHop {
  bool first_is_sum = false, second_is_sum = false, last = false;
  int inputs = 2;
};
ByteVector reference_hop(DataType type, const Reduction& reduction, const ReferenceHop& hop,
                         const ByteVector& first, const ByteVector& second);

// The orders in which hops follow each other: from neighbour to neighbour of a cube, and round a
// ring, where slice k begins with rank k.
// `parts` are inputs, or sums of several, of `inputs` in all.
struct ReferenceParts {
  int inputs = 0;  // 0: one each
  bool are_sums = false;
};
ByteVector reference_cube(DataType type, const Reduction& reduction,
                          const std::vector<ByteVector>& parts, const ReferenceParts& kind = {});
ByteVector reference_ring(DataType type, const Reduction& reduction,
                          const std::vector<ByteVector>& parts, const ReferenceParts& kind = {});

// Where ranks share hosts: the sum of each host, as reduce_host(), and the orders in which these
// meet: those of a cube, or of a ring for each slice.
ByteVector reference_host_cube(DataType type, const Reduction& reduction,
                               const std::vector<ByteVector>& inputs,
                               const std::vector<int>& hosts);
ByteVector reference_host_rings(DataType type, const Reduction& reduction,
                                const std::vector<ByteVector>& inputs,
                                const std::vector<int>& hosts);

enum class Values {
  kPlain,    // finite, of moderate size
  kStrange,  // any bits: denormals, infinities, NaN of every kind
};
// The same for the same arguments, everywhere.
ByteVector random_values(DataType type, size_t count, uint64_t seed, Values values);

}  // namespace hvd
