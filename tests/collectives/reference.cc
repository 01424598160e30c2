#include "tests/collectives/reference.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

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

template <class T>
ByteVector each_float(const Reduction& reduction, const std::vector<ByteVector>& inputs) {
  const auto same = [](T value) { return value; };
  return each<T>(
      inputs, same, [&](const std::vector<T>& v) { return reduce_float(reduction, v); }, same);
}

template <class T>
ByteVector each_integer(const Reduction& reduction, const std::vector<ByteVector>& inputs) {
  const auto same = [](T value) { return value; };
  return each<T>(
      inputs, same, [&](const std::vector<T>& v) { return reduce_integer(reduction, v); }, same);
}

template <class Format>
ByteVector each_short(const Reduction& reduction, const std::vector<ByteVector>& inputs) {
  return each<uint16_t>(
      inputs, Format::decode,
      [&](const std::vector<float>& v) { return reduce_float(reduction, v); }, Format::encode);
}

}  // namespace

ByteVector reference_reduce(DataType type, const Reduction& reduction,
                            const std::vector<ByteVector>& inputs) {
  switch (type) {
    case DataType::kUint8:
      return each_integer<uint8_t>(reduction, inputs);
    case DataType::kInt8:
      return each_integer<int8_t>(reduction, inputs);
    case DataType::kInt32:
      return each_integer<int32_t>(reduction, inputs);
    case DataType::kInt64:
      return each_integer<int64_t>(reduction, inputs);
    case DataType::kFloat16:
      return each_short<Half>(reduction, inputs);
    case DataType::kBfloat16:
      return each_short<Brain>(reduction, inputs);
    case DataType::kFloat32:
      return each_float<float>(reduction, inputs);
    case DataType::kFloat64:
      return each_float<double>(reduction, inputs);
    case DataType::kBool:
      break;
  }
  const auto same = [](uint8_t value) { return value; };
  return each<uint8_t>(
      inputs, same, [&](const std::vector<uint8_t>& v) { return reduce_bool(reduction, v); }, same);
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
