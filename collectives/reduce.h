// The arithmetic of reductions: one definition, the same bits on every transport, rank, instruction
// set and alignment.
//
// Sources are combined in the order given, from the first one up. Floats of 16 and 32 bits are
// accumulated in fp32, doubles in fp64; prescale is applied to each input and the factor
// (postscale, and Average's 1/n) once to the result, both in the accumulator, which is rounded once
// (to nearest, ties to even; denormals kept; one canonical NaN). Min and Max pass a NaN on; of two
// equal values the first one stays. Integers: Sum and Product wrap; Average divides the wrapped Sum
// toward zero; a factor that is not 1 goes through double (long double for int64), truncates and
// saturates. bool: Sum and Max are or, Product and Min are and.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/types.h"

namespace hvd {

// Elements [begin, end) of a tensor.
struct Slice {
  size_t begin = 0, end = 0;
  size_t size() const { return end - begin; }
};

// The part of `count` elements that `rank` of `ranks` reduces: whole cache lines, in rank order.
Slice slice_of(size_t count, int rank, int ranks, DataType type);

// Stores the reduction of `count` elements over all sources into every destination. A destination
// may be one of the sources, at the same address; otherwise they do not overlap. No alignment is
// asked for. The floating-point environment is the default one inside, and as it was afterwards.
void reduce(DataType type, const Reduction& reduction, std::span<const std::byte* const> sources,
            std::span<std::byte* const> destinations, size_t count);

// One hop of a reduction that travels from rank to rank: sources are inputs, or sums of inputs that
// earlier hops made, each rounded once. The last hop's result is that of the whole reduction.
//
// Floats: Sum and Average take all factors (prescale, postscale, 1/n), multiplied, where an input
// is first read, so that 16-bit sums do not overflow on their way. All else takes prescale there,
// and postscale, and an integer's division, at the last hop.
struct Hop {
  int inputs = 1;             // of the whole reduction: ranks
  bool first_is_sum = false;  // sources[0]
  bool rest_are_sums = false;
  bool last = false;
};
void reduce_hop(DataType type, const Reduction& reduction, const Hop& hop,
                std::span<const std::byte* const> sources, std::byte* destination, size_t count);

// The first stage where ranks share hosts: the inputs of one, in rank order, become the sum that
// hops go on with, as `first_is_sum` and `rest_are_sums`.
//
// Float sums take prescale on each input, and postscale and 1/n once, before the sum is rounded;
// all else takes prescale here, and the rest at the last hop.
struct HostSum {
  int inputs = 1;     // of the whole reduction
  bool last = false;  // there is no other host
};
void reduce_host(DataType type, const Reduction& reduction, const HostSum& sum,
                 std::span<const std::byte* const> sources, std::byte* destination, size_t count);

struct ReduceArguments;

// One compiled form of the arithmetic.
struct ReduceVariant {
  const char* name;  // "baseline", "avx2", "avx512"
  bool usable;       // on this machine
  void (*function)(const ReduceArguments& arguments);
};
// All there are, the fastest last; reduce() takes the last usable one. For tests.
std::span<const ReduceVariant> reduce_variants();
void reduce_with(const ReduceVariant& variant, DataType type, const Reduction& reduction,
                 std::span<const std::byte* const> sources,
                 std::span<std::byte* const> destinations, size_t count);

}  // namespace hvd
