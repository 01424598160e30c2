// What kernels do to one element. Pure.
//
// Compiled for GPUs by nvcc, which takes constexpr functions (--expt-relaxed-constexpr), and for
// CPUs where tests compute the same. The rules and the bits are those of collectives/reduce.h.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "hvd/float16.h"

namespace hvd {

// An element is multiplied with the one, then with the other. Integers are truncated after each.
struct Factors {
  double pre = 1, post = 1;
  uint32_t divisor = 1;  // of integers, where post is not 1: after it, before they are truncated
};

constexpr bool is_plain(const Factors& factors) { return factors.pre == 1 && factors.post == 1; }

template <class T>
struct IntegerLimits {
  static constexpr T kMost = std::is_signed_v<T>
                                 ? static_cast<T>((uint64_t{1} << (8 * sizeof(T) - 1)) - 1)
                                 : static_cast<T>(~T{0});
  static constexpr T kLeast = std::is_signed_v<T> ? static_cast<T>(-kMost - 1) : T{0};
};

// Towards zero, and to the nearest limit when out of range. For types that a double holds exactly.
template <class T>
constexpr T truncated(double value) {
  if (__builtin_isnan(value)) return 0;
  if (value <= static_cast<double>(IntegerLimits<T>::kLeast)) return IntegerLimits<T>::kLeast;
  if (value >= static_cast<double>(IntegerLimits<T>::kMost)) return IntegerLimits<T>::kMost;
  return static_cast<T>(value);
}

// The 80-bit long double that int64 is scaled in on CPUs, where there is none: mantissa *
// 2^exponent.
__extension__ typedef unsigned __int128 Wide;
struct Extended {
  uint64_t mantissa = 0;  // its upper bit is set
  int exponent = 0;
};

// To the nearest, ties to even. `mantissa` is not 0.
constexpr Extended rounded(Wide mantissa, int exponent) {
  const auto upper = static_cast<uint64_t>(mantissa >> 64);
  const int zeros =
      upper != 0 ? std::countl_zero(upper) : 64 + std::countl_zero(static_cast<uint64_t>(mantissa));
  mantissa <<= zeros;
  const auto rest = static_cast<uint64_t>(mantissa);
  constexpr uint64_t kMiddle = uint64_t{1} << 63;
  Extended result{static_cast<uint64_t>(mantissa >> 64), exponent + 64 - zeros};
  if (rest > kMiddle || (rest == kMiddle && (result.mantissa & 1) != 0)) ++result.mantissa;
  return result.mantissa != 0 ? result : Extended{kMiddle, result.exponent + 1};
}

// By less than 2^31: of more digits none would tell a tie from what only looks like one.
constexpr Extended divided(Extended value, uint32_t divisor) {
  Wide quotient = value.mantissa / divisor;
  uint64_t rest = value.mantissa % divisor;
  for (int digit = 0; digit < 2; ++digit) {
    rest <<= 32;
    quotient = quotient << 32 | rest / divisor;
    rest %= divisor;
  }
  return rounded(quotient, value.exponent - 64);
}

constexpr int64_t truncated(Extended value, bool negative) {
  if (value.exponent <= -64) return 0;
  if (value.exponent >= 0)  // 2^63 or more
    return negative ? IntegerLimits<int64_t>::kLeast : IntegerLimits<int64_t>::kMost;
  const auto magnitude = static_cast<int64_t>(value.mantissa >> -value.exponent);
  return negative ? -magnitude : magnitude;
}

constexpr int64_t multiplied(int64_t value, double factor, uint32_t divisor) {
  const auto bits = std::bit_cast<uint64_t>(factor);
  const bool negative = (value < 0) != (bits >> 63 != 0);
  const auto biased = static_cast<int>(bits >> 52 & 0x7ff);
  const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
  if (value == 0 || (biased == 0x7ff && fraction != 0)) return 0;
  if (biased == 0x7ff)
    return negative ? IntegerLimits<int64_t>::kLeast : IntegerLimits<int64_t>::kMost;
  const uint64_t mantissa = biased == 0 ? fraction : fraction | uint64_t{1} << 52;
  if (mantissa == 0) return 0;
  const uint64_t magnitude =
      value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  const Extended product =
      rounded(static_cast<Wide>(magnitude) * mantissa, (biased == 0 ? 1 : biased) - 1075);
  return truncated(divisor == 1 ? product : divided(product, divisor), negative);
}

template <class T>
constexpr T multiplied(T value, double factor, uint32_t divisor) {
  return truncated<T>(static_cast<double>(value) * factor / static_cast<double>(divisor));
}

template <class T>
constexpr T one_nan() {
  if constexpr (sizeof(T) == 8)
    return std::bit_cast<double>(uint64_t{0x7ff8000000000000});
  else
    return std::bit_cast<float>(uint32_t{0x7fc00000});
}

// In the accumulator of a reduction.
template <class T>
constexpr T scaled_float(T value, const Factors& factors) {
  const T result = value * static_cast<T>(factors.pre) * static_cast<T>(factors.post);
  return __builtin_isnan(result) ? one_nan<T>() : result;
}

template <class T>
constexpr T scaled(T value, const Factors& factors) {
  if constexpr (std::is_floating_point_v<T>) {
    return scaled_float(value, factors);
  } else if constexpr (std::is_integral_v<T>) {
    if (factors.pre != 1) value = multiplied(value, factors.pre, 1);
    return factors.post != 1 ? multiplied(value, factors.post, factors.divisor) : value;
  } else {
    return T(scaled_float(static_cast<float>(value), factors));
  }
}

// Between floating types, as hvd/float16.h rounds. float64 goes to 16 bits, and comes from there,
// by way of float32, as in LibTorch; between these two every NaN becomes one_nan().
template <class To, class From>
constexpr To converted(From value) {
  if constexpr (std::is_same_v<From, To>) {
    return value;
  } else if constexpr (std::is_floating_point_v<From> && std::is_floating_point_v<To>) {
    return __builtin_isnan(value) ? one_nan<To>() : static_cast<To>(value);
  } else if constexpr (std::is_same_v<To, double>) {
    return converted<double>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<From, double>) {
    return To(converted<float>(value));
  } else {
    return To(static_cast<float>(value));
  }
}

// Multiplied before it is rounded: float64 as such, all else as float32. With a factor of 1 the
// bits are those of the conversion alone.
template <class To, class From>
constexpr To converted(From value, double factor) {
  if (factor == 1) return converted<To>(value);
  using Computed = std::conditional_t<std::is_same_v<From, double>, double, float>;
  return converted<To>(scaled_float(static_cast<Computed>(value), {.pre = factor}));
}

}  // namespace hvd
