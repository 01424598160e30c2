#include "collectives/reduce.h"

#include <algorithm>
#include <cfenv>
#include <cstdlib>
#include <cstring>
#include <string>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "tests/collectives/reference.h"
#include "tests/support/catch.h"

using namespace hvd;

namespace {

constexpr DataType kTypes[] = {DataType::kUint8,   DataType::kInt8,    DataType::kInt32,
                               DataType::kInt64,   DataType::kFloat16, DataType::kBfloat16,
                               DataType::kFloat32, DataType::kFloat64, DataType::kBool};
constexpr ReduceOp kOps[] = {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};

// Copies that begin `shift` bytes off alignment.
std::vector<ByteVector> shifted(const std::vector<ByteVector>& inputs, size_t shift) {
  const size_t bytes = inputs[0].size();
  std::vector<ByteVector> buffers;
  for (const ByteVector& input : inputs) {
    ByteVector buffer(bytes + shift + 64, std::byte{0xab});
    if (bytes != 0) std::memcpy(buffer.data() + shift, input.data(), bytes);
    buffers.push_back(std::move(buffer));
  }
  return buffers;
}

// As an allreduce in the arena: into all sources and nowhere else.
void require_in_place(const ReduceVariant& variant, DataType type, const Reduction& reduction,
                      const std::vector<ByteVector>& inputs, size_t shift,
                      const ByteVector& expected) {
  std::vector<ByteVector> buffers = shifted(inputs, shift);
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> destinations;
  for (ByteVector& buffer : buffers) {
    sources.push_back(buffer.data() + shift);
    destinations.push_back(buffer.data() + shift);
  }
  reduce_with(variant, type, reduction, sources, destinations, expected.size() / size_of(type));
  ByteVector whole(expected.size() + shift + 64, std::byte{0xab});
  std::ranges::copy(expected, whole.begin() + static_cast<long>(shift));
  for (const ByteVector& buffer : buffers) REQUIRE(buffer == whole);
}

// As a hop: into one place that is none of the sources.
void require_elsewhere(const ReduceVariant& variant, DataType type, const Reduction& reduction,
                       const std::vector<ByteVector>& inputs, size_t shift,
                       const ByteVector& expected) {
  std::vector<ByteVector> buffers = shifted(inputs, shift);
  std::vector<const std::byte*> sources;
  for (const ByteVector& buffer : buffers) sources.push_back(buffer.data() + shift);
  const std::vector<ByteVector> before = buffers;
  ByteVector result(expected.size() + 1);
  std::byte* const destination = result.data() + 1;
  reduce_with(variant, type, reduction, sources, std::span(&destination, 1),
              expected.size() / size_of(type));
  REQUIRE(std::ranges::equal(std::span(result).subspan(1), expected));
  REQUIRE(buffers == before);
}

// The result of one variant, in place in the first and the last source, `shift` bytes off
// alignment.
ByteVector run_variant(const ReduceVariant& variant, DataType type, const Reduction& reduction,
                       const std::vector<ByteVector>& inputs, size_t shift) {
  const size_t bytes = inputs[0].size();
  std::vector<ByteVector> buffers = shifted(inputs, shift);
  std::vector<const std::byte*> sources;
  for (const ByteVector& buffer : buffers) sources.push_back(buffer.data() + shift);
  ByteVector elsewhere(bytes + shift + 64, std::byte{0xcd});
  std::byte* destinations[] = {buffers.front().data() + shift, buffers.back().data() + shift,
                               elsewhere.data() + shift};
  reduce_with(variant, type, reduction, sources, destinations, bytes / size_of(type));
  for (size_t i = 0; i < shift; ++i) REQUIRE(elsewhere[i] == std::byte{0xcd});
  for (size_t i = 0; i < 64; ++i) REQUIRE(elsewhere[shift + bytes + i] == std::byte{0xcd});
  REQUIRE(std::memcmp(destinations[0], destinations[1], bytes) == 0);
  REQUIRE(std::memcmp(destinations[0], destinations[2], bytes) == 0);
  return {elsewhere.begin() + static_cast<long>(shift),
          elsewhere.begin() + static_cast<long>(shift + bytes)};
}

void compare_variants(DataType type, const Reduction& reduction, size_t ranks, size_t count,
                      Values values) {
  std::vector<ByteVector> inputs;
  for (size_t k = 0; k < ranks; ++k)
    inputs.push_back(random_values(type, count, 100 * count + k + 1, values));
  const ByteVector expected = reference_reduce(type, reduction, inputs);
  for (const ReduceVariant& variant : reduce_variants()) {
    if (!variant.usable) continue;
    for (size_t shift : {0, 1, 4}) {
      const ByteVector result = run_variant(variant, type, reduction, inputs, shift);
      INFO(variant.name << " " << name_of(type) << " " << name_of(reduction.op) << " ranks "
                        << ranks << " count " << count << " shift " << shift);
      REQUIRE(result == expected);
      require_in_place(variant, type, reduction, inputs, shift, expected);
      require_elsewhere(variant, type, reduction, inputs, shift, expected);
    }
  }
}

}  // namespace

TEST_CASE("reduce: every instruction set gives the bits of the plain definition") {
  const DataType type = GENERATE(from_range(std::begin(kTypes), std::end(kTypes)));
  for (ReduceOp op : kOps) {
    if (type == DataType::kBool && op == ReduceOp::kAverage) continue;
    for (size_t ranks : {1, 2, 3, 4, 5})
      for (size_t count : {0, 1, 3, 7, 16, 31, 33, 64, 127, 515, 1031}) {
        compare_variants(type, {.op = op}, ranks, count, Values::kPlain);
        compare_variants(type, {.op = op}, ranks, count, Values::kStrange);
      }
  }
}

TEST_CASE("reduce: factors are applied in the accumulator, once") {
  const DataType type = GENERATE(from_range(std::begin(kTypes), std::end(kTypes)));
  if (type == DataType::kBool) return;
  for (ReduceOp op : kOps)
    for (Reduction reduction :
         {Reduction{op, 0.25, 1}, Reduction{op, 1, 1.7}, Reduction{op, 0.3, 3}})
      for (Values values : {Values::kPlain, Values::kStrange})
        for (size_t ranks : {2, 3, 4, 5}) compare_variants(type, reduction, ranks, 259, values);
}

TEST_CASE("reduce: a hop takes inputs and sums, and finishes once") {
  const DataType type = GENERATE(from_range(std::begin(kTypes), std::end(kTypes)));
  for (ReduceOp op : kOps)
    for (Reduction reduction : {Reduction{op, 1, 1}, Reduction{op, 0.3, 1}, Reduction{op, 0.5, 3}})
      for (int kind = 0; kind < 6; ++kind)
        for (Values values : {Values::kPlain, Values::kStrange}) {
          const bool plain = reduction.prescale == 1 && reduction.postscale == 1;
          if (type == DataType::kBool && (op == ReduceOp::kAverage || !plain)) continue;
          const ReferenceHop hop{.first_is_sum = kind % 3 > 0,
                                 .second_is_sum = kind % 3 > 1,
                                 .last = kind > 2,
                                 .inputs = 5};
          const ByteVector first = random_values(type, 259, 1, values);
          const ByteVector second = random_values(type, 259, 2, values);
          ByteVector result(first.size());
          const std::byte* sources[] = {first.data(), second.data()};
          reduce_hop(type, reduction, {5, hop.first_is_sum, hop.second_is_sum, hop.last}, sources,
                     result.data(), 259);
          INFO(name_of(type) << " " << name_of(op) << " kind " << kind << " prescale "
                             << reduction.prescale);
          REQUIRE(result == reference_hop(type, reduction, hop, first, second));
        }
}

TEST_CASE("reduce: an average of three large halves does not overflow on its way") {
  const uint16_t big = 0x78e2;  // 40,000
  const auto* bytes = reinterpret_cast<const std::byte*>(&big);
  uint16_t sum = 0, result = 0;
  const std::byte* first[] = {bytes, bytes};
  reduce_hop(DataType::kFloat16, {.op = ReduceOp::kAverage}, {.inputs = 3}, first,
             reinterpret_cast<std::byte*>(&sum), 1);
  const std::byte* second[] = {reinterpret_cast<const std::byte*>(&sum), bytes};
  reduce_hop(DataType::kFloat16, {.op = ReduceOp::kAverage},
             {.inputs = 3, .first_is_sum = true, .last = true}, second,
             reinterpret_cast<std::byte*>(&result), 1);
  CHECK(std::abs(result - big) <= 1);  // one unit in the last place: rounded twice
}

TEST_CASE("reduce: an average of two large halves does not overflow") {
  const uint16_t big = 0x78e2;  // 40,000
  const std::byte* bytes = reinterpret_cast<const std::byte*>(&big);
  uint16_t result = 0;
  auto* out = reinterpret_cast<std::byte*>(&result);
  const std::byte* sources[] = {bytes, bytes};
  for (const ReduceVariant& variant : reduce_variants()) {
    if (!variant.usable) continue;
    reduce_with(variant, DataType::kFloat16, {.op = ReduceOp::kAverage}, sources,
                std::span(&out, 1), 1);
    CHECK(result == big);
    reduce_with(variant, DataType::kFloat16, {.op = ReduceOp::kSum}, sources, std::span(&out, 1),
                1);
    CHECK(result == 0x7c00);  // 80,000 is more than a half can hold
  }
}

TEST_CASE("reduce: an average of integers goes toward zero, a factor truncates and saturates") {
  const auto one = [](DataType type, const Reduction& reduction, std::vector<int64_t> values) {
    std::vector<const std::byte*> sources;
    for (const int64_t& value : values)
      sources.push_back(reinterpret_cast<const std::byte*>(&value));
    int64_t result = 0;
    auto* out = reinterpret_cast<std::byte*>(&result);
    reduce(type, reduction, sources, std::span(&out, 1), 1);
    if (type == DataType::kInt8) return static_cast<int64_t>(static_cast<int8_t>(result));
    if (type == DataType::kInt32) return static_cast<int64_t>(static_cast<int32_t>(result));
    return result;
  };
  CHECK(one(DataType::kInt32, {.op = ReduceOp::kAverage}, {-3, 0}) == -1);
  CHECK(one(DataType::kInt8, {.op = ReduceOp::kSum}, {100, 100}) == -56);
  CHECK(one(DataType::kInt8, {.op = ReduceOp::kSum, .postscale = 2}, {100, 0}) == 127);
  CHECK(one(DataType::kInt8, {.op = ReduceOp::kSum, .prescale = -0.5}, {5, 3}) == -3);
  CHECK(one(DataType::kInt32, {.op = ReduceOp::kAverage, .postscale = 2}, {1, 1, 1}) == 2);
  const int64_t large = (int64_t{1} << 62) + 1;
  CHECK(one(DataType::kInt64, {.op = ReduceOp::kSum, .postscale = -1}, {large, 0}) == -large);
}

TEST_CASE("reduce: the caller's rounding and flushing change nothing and are kept") {
  const std::vector<ByteVector> inputs = {
      random_values(DataType::kFloat32, 100, 1, Values::kStrange),
      random_values(DataType::kFloat32, 100, 2, Values::kStrange)};
  const Reduction reduction{.op = ReduceOp::kAverage, .postscale = 0.37};
  const ByteVector expected = reference_reduce(DataType::kFloat32, reduction, inputs);
  for (const ReduceVariant& variant : reduce_variants()) {
    if (!variant.usable) continue;
#if defined(__x86_64__)
    const unsigned kept = _mm_getcsr();
    _mm_setcsr(kept | 0x8040);  // flush to zero, denormals are zero
#endif
    std::fesetround(FE_UPWARD);
    const ByteVector result = run_variant(variant, DataType::kFloat32, reduction, inputs, 0);
    const int rounding = std::fegetround();
    std::fesetround(FE_TONEAREST);
#if defined(__x86_64__)
    const unsigned after = _mm_getcsr();
    _mm_setcsr(kept);
    CHECK((after & 0x8040) == 0x8040);
#endif
    CHECK(rounding == FE_UPWARD);
    CHECK(result == expected);
  }
}

TEST_CASE("reduce: slices cover everything once, in order, in whole cache lines") {
  for (DataType type : kTypes)
    for (int ranks : {1, 2, 3, 8, 100})
      for (size_t count : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{1000003}}) {
        size_t at = 0;
        for (int k = 0; k < ranks; ++k) {
          const Slice slice = slice_of(count, k, ranks, type);
          REQUIRE(slice.begin == at);
          REQUIRE((slice.begin == count || slice.begin * size_of(type) % 64 == 0));
          at = slice.end;
        }
        REQUIRE(at == count);
      }
}
