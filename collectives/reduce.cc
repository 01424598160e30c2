#include "collectives/reduce.h"

#include <algorithm>

#include "collectives/float_environment.h"
#include "collectives/reduce_kernels.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

#if defined(__x86_64__)
// "x86-64-v3" and its 512-bit extensions, as the sources' flags name them.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("aes") &&
         __builtin_cpu_supports("pclmul");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512cd");
}
const ReduceVariant kVariants[] = {
    {"baseline", true, reduce_baseline},
    {"avx2", has_avx2(), reduce_avx2},
    {"avx512", has_avx512(), reduce_avx512},
};
// What another core wrote comes from its cache line by line, and a processor's own guesses end with
// each page: two tensors summed in place take an Intel Xeon a tenth less time at 1 and 256 MiB when
// asked for ahead. Family 19h (measured: an EPYC of Zen 4) takes a seventh more, from 1 to 256 MiB.
const bool kFetchAhead = !__builtin_cpu_is("amdfam19h");
// How many of them for floats of 32 and 64 bits, which memory and the kernel bound. An Intel core
// is slower for a while after floating point 512 bits wide: with 256 bits an allreduce of two ranks
// takes 2 to 8 % less time between hosts, and inside one up to a quarter less, but a fifth more at
// 16 KiB. Sums of 16-bit floats compute so much that 512 bits pay; integers do not care.
const size_t kNarrowVariants = __builtin_cpu_is("intel") ? 2 : 3;
#else
const ReduceVariant kVariants[] = {{"baseline", true, reduce_baseline}};
constexpr bool kFetchAhead = true;
constexpr size_t kNarrowVariants = 1;
#endif

const ReduceVariant& fastest(std::span<const ReduceVariant> variants) {
  const ReduceVariant* best = variants.data();
  for (const ReduceVariant& variant : variants)
    if (variant.usable) best = &variant;
  return *best;
}

const ReduceVariant& chosen(DataType type) {
  static const ReduceVariant& widest = fastest(kVariants);
  static const ReduceVariant& narrow = fastest(std::span(kVariants).first(kNarrowVariants));
  return type == DataType::kFloat32 || type == DataType::kFloat64 ? narrow : widest;
}

void reduce_into(ReduceArguments arguments, std::span<const std::byte* const> sources,
                 std::byte* destination, size_t count) {
  arguments.sources = sources.data();
  arguments.source_count = sources.size();
  arguments.destinations = &destination;
  arguments.destination_count = 1;
  arguments.count = count;
  arguments.fetch_ahead = kFetchAhead;
  chosen(arguments.type).function(arguments);
}

bool is_float_sum(DataType type, ReduceOp op) {
  return is_float(type) && (op == ReduceOp::kAverage || op == ReduceOp::kSum);
}

}  // namespace

Slice slice_of(size_t count, int rank, int ranks, DataType type) {
  const size_t line = 64 / size_of(type), parts = static_cast<size_t>(ranks);
  const size_t each = ((count + parts - 1) / parts + line - 1) / line * line;
  const size_t begin = std::min(count, each * static_cast<size_t>(rank));
  return {begin, std::min(count, begin + each)};
}

void reduce(DataType type, const Reduction& reduction, std::span<const std::byte* const> sources,
            std::span<std::byte* const> destinations, size_t count) {
  reduce_with(chosen(type), type, reduction, sources, destinations, count);
}

void reduce_hop(DataType type, const Reduction& reduction, const Hop& hop,
                std::span<const std::byte* const> sources, std::byte* destination, size_t count) {
  const bool average = reduction.op == ReduceOp::kAverage;
  const bool float_sum = is_float_sum(type, reduction.op);
  const double share = average ? 1.0 / hop.inputs : 1.0;
  const double factor =
      float_sum ? reduction.prescale * (reduction.postscale * share) : reduction.prescale;
  const bool finish = hop.last && !float_sum;
  const DefaultFloatEnvironment environment(type == DataType::kInt64 &&
                                            (factor != 1 || reduction.postscale != 1));
  reduce_into({.type = type,
               .op = average && !finish ? ReduceOp::kSum : reduction.op,
               .prescale = hop.rest_are_sums ? 1 : factor,
               .postscale = finish ? reduction.postscale : 1,
               .prescale_first = hop.first_is_sum ? 1 : factor,
               .inputs = static_cast<size_t>(hop.inputs)},
              sources, destination, count);
}

void reduce_host(DataType type, const Reduction& reduction, const HostSum& sum,
                 std::span<const std::byte* const> sources, std::byte* destination, size_t count) {
  const bool finish = sum.last || is_float_sum(type, reduction.op);
  const bool average = reduction.op == ReduceOp::kAverage;
  const DefaultFloatEnvironment environment(type == DataType::kInt64 &&
                                            (reduction.prescale != 1 || reduction.postscale != 1));
  reduce_into({.type = type,
               .op = average && !finish ? ReduceOp::kSum : reduction.op,
               .prescale = reduction.prescale,
               .postscale = finish ? reduction.postscale : 1,
               .prescale_first = reduction.prescale,
               .inputs = static_cast<size_t>(sum.inputs)},
              sources, destination, count);
}

void reduce_with(const ReduceVariant& variant, DataType type, const Reduction& reduction,
                 std::span<const std::byte* const> sources,
                 std::span<std::byte* const> destinations, size_t count) {
  const DefaultFloatEnvironment environment(type == DataType::kInt64 &&
                                            (reduction.prescale != 1 || reduction.postscale != 1));
  variant.function({.type = type,
                    .op = reduction.op,
                    .prescale = reduction.prescale,
                    .postscale = reduction.postscale,
                    .prescale_first = reduction.prescale,
                    .inputs = sources.size(),
                    .sources = sources.data(),
                    .source_count = sources.size(),
                    .destinations = destinations.data(),
                    .destination_count = destinations.size(),
                    .count = count,
                    .fetch_ahead = kFetchAhead});
}

std::span<const ReduceVariant> reduce_variants() { return kVariants; }

}  // namespace hvd
