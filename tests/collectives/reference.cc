#include "tests/collectives/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "collectives/reduce.h"

namespace hvd {
namespace {

// A float type with `kDigits` bits of mantissa (the hidden one included), least exponent kLeast.
template <int kDigits, int kLeast, int kMost>
float round_to(float value) {
  if (value == 0 || std::isnan(value) || std::isinf(value)) return value;
  const int exponent = std::max(std::ilogb(static_cast<double>(value)), kLeast);
  const double unit = std::ldexp(1.0, exponent - (kDigits - 1));
  const double rounded = std::nearbyint(static_cast<double>(value) / unit) * unit;
  if (std::fabs(rounded) >= std::ldexp(1.0, kMost + 1))
    return std::copysign(std::numeric_limits<float>::infinity(), value);
  return static_cast<float>(rounded);
}

struct Half {
  static float decode(uint16_t bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == 31) return mantissa != 0 ? std::nanf("") : static_cast<float>(sign * HUGE_VAL);
    if (exponent == 0) return static_cast<float>(sign * std::ldexp(mantissa, -24));
    return static_cast<float>(sign * std::ldexp(1024 + mantissa, exponent - 25));
  }
  static uint16_t encode(float value) {
    if (std::isnan(value)) return 0x7e00;
    const float rounded = round_to<11, -14, 15>(value);
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::fabs(static_cast<double>(rounded));
    if (std::isinf(size)) return sign | 0x7c00;
    if (size < std::ldexp(1.0, -14)) return static_cast<uint16_t>(sign + std::ldexp(size, 24));
    const int exponent = std::ilogb(size);
    const auto mantissa = static_cast<int>(std::ldexp(size, 10 - exponent)) - 1024;
    return static_cast<uint16_t>(sign | (exponent + 15) << 10 | mantissa);
  }
};

struct Brain {
  static float decode(uint16_t bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
  }
  static uint16_t encode(float value) {
    if (std::isnan(value)) return 0x7fc0;
    const float rounded = round_to<8, -126, 127>(value);
    uint32_t wide;
    std::memcpy(&wide, &rounded, 4);
    return static_cast<uint16_t>(wide >> 16);
  }
};

template <class T>
T one_nan(T value) {
  return std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value;
}

template <class T>
T float_combine(ReduceOp op, T a, T x) {
  if (op == ReduceOp::kProduct) return a * x;
  if (op == ReduceOp::kMin) return std::isnan(a) ? a : std::isnan(x) || x < a ? x : a;
  if (op == ReduceOp::kMax) return std::isnan(a) ? a : std::isnan(x) || x > a ? x : a;
  return a + x;
}

template <class T>
T reduce_float(const Reduction& reduction, const std::vector<T>& inputs) {
  const double n = static_cast<double>(inputs.size());
  const double share = reduction.op == ReduceOp::kAverage ? 1 / n : 1;
  T a = 0;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const T x = inputs[k] * static_cast<T>(reduction.prescale);
    a = k == 0 ? x : float_combine(reduction.op, a, x);
  }
  return one_nan(static_cast<T>(a * static_cast<T>(reduction.postscale * share)));
}

template <class T>
T times(T value, double factor, int64_t divisor) {
  using Wide = std::conditional_t<sizeof(T) == 8, long double, double>;
  const Wide product = static_cast<Wide>(value) * static_cast<Wide>(factor) / divisor;
  if (product >= static_cast<Wide>(std::numeric_limits<T>::max()))
    return std::numeric_limits<T>::max();
  if (product <= static_cast<Wide>(std::numeric_limits<T>::min()))
    return std::numeric_limits<T>::min();
  return static_cast<T>(product);
}

template <class T>
T reduce_integer(const Reduction& reduction, const std::vector<T>& inputs) {
  T a = 0;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const T x = reduction.prescale == 1 ? inputs[k] : times(inputs[k], reduction.prescale, 1);
    if (k == 0)
      a = x;
    else if (reduction.op == ReduceOp::kMin)
      a = std::min(a, x);
    else if (reduction.op == ReduceOp::kMax)
      a = std::max(a, x);
    else if (reduction.op == ReduceOp::kProduct)
      a = static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(x));
    else
      a = static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(x));
  }
  const int64_t divisor =
      reduction.op == ReduceOp::kAverage ? static_cast<int64_t>(inputs.size()) : 1;
  if (reduction.postscale != 1) return times(a, reduction.postscale, divisor);
  return static_cast<T>(a / divisor);
}

uint8_t reduce_bool(const Reduction& reduction, const std::vector<uint8_t>& inputs) {
  const bool either = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kMax;
  bool a = !either;
  for (uint8_t x : inputs) a = either ? a || x != 0 : a && x != 0;
  return a ? 1 : 0;
}

template <class Stored, class Decode, class Reduce, class Encode>
ByteVector each(const std::vector<ByteVector>& inputs, Decode decode, Reduce reduce,
                Encode encode) {
  ByteVector result(inputs[0].size());
  for (size_t at = 0; at < result.size(); at += sizeof(Stored)) {
    std::vector<decltype(decode(Stored()))> values;
    for (const ByteVector& input : inputs) {
      Stored stored;
      std::memcpy(&stored, &input[at], sizeof stored);
      values.push_back(decode(stored));
    }
    const Stored stored = encode(reduce(values));
    std::memcpy(&result[at], &stored, sizeof stored);
  }
  return result;
}

// The result of `floats`, `integers` or `bools` for each element of all inputs.
template <class Floats, class Integers, class Bools>
ByteVector each_of(DataType type, const std::vector<ByteVector>& inputs, Floats floats,
                   Integers integers, Bools bools) {
  const auto same = [](auto value) { return value; };
  switch (type) {
    case DataType::kUint8:
      return each<uint8_t>(inputs, same, integers, same);
    case DataType::kInt8:
      return each<int8_t>(inputs, same, integers, same);
    case DataType::kInt32:
      return each<int32_t>(inputs, same, integers, same);
    case DataType::kInt64:
      return each<int64_t>(inputs, same, integers, same);
    case DataType::kFloat16:
      return each<uint16_t>(inputs, Half::decode, floats, Half::encode);
    case DataType::kBfloat16:
      return each<uint16_t>(inputs, Brain::decode, floats, Brain::encode);
    case DataType::kFloat32:
      return each<float>(inputs, same, floats, same);
    case DataType::kFloat64:
      return each<double>(inputs, same, floats, same);
    case DataType::kBool:
      break;
  }
  return each<uint8_t>(inputs, same, bools, same);
}

ByteVector cut(const ByteVector& whole, const Slice& part, size_t element) {
  return {whole.begin() + static_cast<long>(part.begin * element),
          whole.begin() + static_cast<long>(part.end * element)};
}

}  // namespace

ByteVector reference_reduce(DataType type, const Reduction& reduction,
                            const std::vector<ByteVector>& inputs) {
  return each_of(
      type, inputs, [&](const auto& values) { return reduce_float(reduction, values); },
      [&](const auto& values) { return reduce_integer(reduction, values); },
      [&](const auto& values) { return reduce_bool(reduction, values); });
}

ByteVector reference_hop(DataType type, const Reduction& reduction, const ReferenceHop& hop,
                         const ByteVector& first, const ByteVector& second) {
  // What an input goes through before it is combined, and what the last result goes through.
  Reduction input{ReduceOp::kSum, reduction.prescale, 1}, combine{reduction.op, 1, 1};
  if (reduction.op == ReduceOp::kAverage) combine.op = ReduceOp::kSum;
  Reduction result{ReduceOp::kSum, 1, hop.last ? reduction.postscale : 1};
  const double share = reduction.op == ReduceOp::kAverage ? 1.0 / hop.inputs : 1.0;
  const auto floats = [&](const auto& values) {
    Reduction scaled = input, finish = result;
    if (combine.op == ReduceOp::kSum) {
      scaled.prescale = reduction.prescale * (reduction.postscale * share);
      finish.postscale = 1;
    }
    auto parts = values;
    if (!hop.first_is_sum) parts[0] = reduce_float(scaled, std::vector{values[0]});
    if (!hop.second_is_sum) parts[1] = reduce_float(scaled, std::vector{values[1]});
    return reduce_float(finish, std::vector{reduce_float(combine, parts)});
  };
  const auto integers = [&](const auto& values) {
    auto parts = values;
    if (!hop.first_is_sum) parts[0] = reduce_integer(input, std::vector{values[0]});
    if (!hop.second_is_sum) parts[1] = reduce_integer(input, std::vector{values[1]});
    auto sum = reduce_integer(combine, parts);
    const int divisor = hop.last && reduction.op == ReduceOp::kAverage ? hop.inputs : 1;
    if (result.postscale != 1) return times(sum, result.postscale, divisor);
    return static_cast<decltype(sum)>(sum / divisor);
  };
  return each_of(type, {first, second}, floats, integers,
                 [&](const auto& values) { return reduce_bool(reduction, values); });
}

ByteVector reference_cube(DataType type, const Reduction& reduction,
                          const std::vector<ByteVector>& inputs, const ReferenceParts& kind) {
  const size_t ranks = inputs.size();
  if (ranks == 1) return inputs[0];
  size_t corners = 1;
  while (2 * corners <= ranks) corners *= 2;
  std::vector<ByteVector> sums(inputs.begin(), inputs.begin() + static_cast<long>(corners));
  std::vector<bool> is_sum(corners, kind.are_sums);
  ReferenceHop hop{.first_is_sum = kind.are_sums,
                   .second_is_sum = kind.are_sums,
                   .inputs = kind.inputs != 0 ? kind.inputs : static_cast<int>(ranks)};
  for (size_t k = corners; k < ranks; ++k) {
    sums[k - corners] = reference_hop(type, reduction, hop, sums[k - corners], inputs[k]);
    is_sum[k - corners] = true;
  }
  for (size_t width = 1; width < corners; width *= 2) {
    hop.last = 2 * width == corners;
    for (size_t k = 0; k < corners; k += 2 * width) {
      hop.first_is_sum = is_sum[k] || width > 1;
      hop.second_is_sum = is_sum[k + width] || width > 1;
      sums[k] = reference_hop(type, reduction, hop, sums[k], sums[k + width]);
    }
  }
  return sums[0];
}

ByteVector reference_ring(DataType type, const Reduction& reduction,
                          const std::vector<ByteVector>& inputs, const ReferenceParts& kind) {
  const size_t ranks = inputs.size(), element = size_of(type);
  ByteVector result;
  for (size_t slice = 0; slice < ranks; ++slice) {
    const Slice part = slice_of(inputs[0].size() / element, static_cast<int>(slice),
                                static_cast<int>(ranks), type);
    const auto cut_of = [&](size_t rank) { return cut(inputs[rank % ranks], part, element); };
    ByteVector sum = cut_of(slice);
    for (size_t hop = 1; hop < ranks; ++hop)
      sum = reference_hop(type, reduction,
                          {.first_is_sum = kind.are_sums || hop > 1,
                           .second_is_sum = kind.are_sums,
                           .last = hop + 1 == ranks,
                           .inputs = kind.inputs != 0 ? kind.inputs : static_cast<int>(ranks)},
                          sum, cut_of(slice + hop));
    result.insert(result.end(), sum.begin(), sum.end());
  }
  return result;
}

namespace {

// A reduction of the ranks of one host, of so many in all.
std::vector<ByteVector> sums_of_hosts(DataType type, const Reduction& reduction,
                                      const std::vector<ByteVector>& inputs,
                                      const std::vector<int>& hosts) {
  const bool is_float = type == DataType::kFloat16 || type == DataType::kBfloat16 ||
                        type == DataType::kFloat32 || type == DataType::kFloat64;
  const bool average = reduction.op == ReduceOp::kAverage;
  Reduction of_host = reduction;
  if (average) of_host.op = ReduceOp::kSum;
  if (hosts.size() > 1) of_host.postscale = 1;
  if (is_float && of_host.op == ReduceOp::kSum)
    of_host.postscale =
        reduction.postscale * (average ? 1 / static_cast<double>(inputs.size()) : 1);
  if (hosts.size() == 1) of_host = reduction;
  std::vector<ByteVector> sums;
  auto from = inputs.begin();
  for (int ranks : hosts) {
    sums.push_back(reference_reduce(type, of_host, std::vector<ByteVector>(from, from + ranks)));
    from += ranks;
  }
  return sums;
}

}  // namespace

ByteVector reference_host_cube(DataType type, const Reduction& reduction,
                               const std::vector<ByteVector>& inputs,
                               const std::vector<int>& hosts) {
  return reference_cube(type, reduction, sums_of_hosts(type, reduction, inputs, hosts),
                        {.inputs = static_cast<int>(inputs.size()), .are_sums = true});
}

ByteVector reference_host_rings(DataType type, const Reduction& reduction,
                                const std::vector<ByteVector>& inputs,
                                const std::vector<int>& hosts) {
  const std::vector<ByteVector> sums = sums_of_hosts(type, reduction, inputs, hosts);
  const size_t element = size_of(type), count = inputs[0].size() / element;
  const int slices = *std::max_element(hosts.begin(), hosts.end());
  ByteVector result;
  for (int k = 0; k < slices; ++k) {
    std::vector<ByteVector> parts;
    for (const ByteVector& sum : sums)
      parts.push_back(cut(sum, slice_of(count, k, slices, type), element));
    const ByteVector slice = reference_ring(
        type, reduction, parts, {.inputs = static_cast<int>(inputs.size()), .are_sums = true});
    result.insert(result.end(), slice.begin(), slice.end());
  }
  return result;
}

ByteVector random_values(DataType type, size_t count, uint64_t seed, Values values) {
  ByteVector bytes(count * size_of(type));
  uint64_t state = seed * 0x9e3779b97f4a7c15 + 12345;
  const auto next = [&state] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545f4914f6cdd1d >> 11;
  };
  for (size_t i = 0; i < count; ++i) {
    uint64_t bits = next() << 20 ^ next();
    const double plain = static_cast<double>(next() % 2000001) / 1000.0 - 1000.0;
    const auto single = static_cast<float>(plain);
    if (values == Values::kPlain) {
      const uint16_t half =
          type == DataType::kFloat16 ? Half::encode(single) : Brain::encode(single);
      if (type == DataType::kFloat64) std::memcpy(&bits, &plain, 8);
      if (type == DataType::kFloat32) std::memcpy(&bits, &single, 4);
      if (size_of(type) == 2) std::memcpy(&bits, &half, 2);
    }
    if (type == DataType::kBool) bits &= 1;
    // Little end first: the low bytes are the value.
    std::memcpy(&bytes[i * size_of(type)], &bits, size_of(type));
  }
  return bytes;
}

}  // namespace hvd
