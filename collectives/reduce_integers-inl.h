// Integers and bool: exact, so plain loops, which the compiler turns into vectors.
#pragma once

#include <hwy/highway.h>
#include <string.h>

#include <type_traits>

#include "collectives/reduce_kernels.h"

namespace hvd::HWY_NAMESPACE {

constexpr size_t kIntegerBlock = 512;  // elements, accumulated in the first cache

template <class T>
struct Limits {
  static constexpr bool kSigned = std::is_signed_v<T>;
  static constexpr int kBits = 8 * sizeof(T);
  static constexpr T kMost =
      kSigned ? static_cast<T>((uint64_t{1} << (kBits - 1)) - 1) : static_cast<T>(~T(0));
  static constexpr T kLeast = kSigned ? static_cast<T>(-kMost - 1) : T(0);
};

// A product of an integer and a factor, towards zero, and to the nearest limit when out of range.
template <class T, class Wide>
T truncated(Wide value) {
  if (__builtin_isnan(value)) return 0;
  if (value <= static_cast<Wide>(Limits<T>::kLeast)) return Limits<T>::kLeast;
  if (value >= static_cast<Wide>(Limits<T>::kMost)) return Limits<T>::kMost;
  return static_cast<T>(value);
}

template <class T>
struct WideOf {
  using type = double;  // holds every int32 exactly
};
template <>
struct WideOf<int64_t> {
  using type = long double;
};

template <class U, class T>
void combine_integers(ReduceOp op, T* HWY_RESTRICT a, const T* HWY_RESTRICT x, size_t n) {
  switch (op) {
    case ReduceOp::kMin:
      for (size_t i = 0; i < n; ++i) a[i] = x[i] < a[i] ? x[i] : a[i];
      return;
    case ReduceOp::kMax:
      for (size_t i = 0; i < n; ++i) a[i] = a[i] < x[i] ? x[i] : a[i];
      return;
    case ReduceOp::kProduct:
      for (size_t i = 0; i < n; ++i)
        a[i] = static_cast<T>(static_cast<U>(static_cast<U>(a[i]) * static_cast<U>(x[i])));
      return;
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kAdasum:
      for (size_t i = 0; i < n; ++i)
        a[i] = static_cast<T>(static_cast<U>(static_cast<U>(a[i]) + static_cast<U>(x[i])));
      return;
  }
}

template <class T>
void finish_integers(const ReduceArguments& arguments, T* a, size_t n) {
  using Wide = typename WideOf<T>::type;
  const bool average = arguments.op == ReduceOp::kAverage;
  const auto ranks = static_cast<int64_t>(arguments.inputs);
  if (arguments.postscale != 1) {
    const auto factor = static_cast<Wide>(arguments.postscale);
    const Wide divisor = average ? static_cast<Wide>(ranks) : Wide(1);
    for (size_t i = 0; i < n; ++i) a[i] = truncated<T>(static_cast<Wide>(a[i]) * factor / divisor);
  } else if (average) {
    for (size_t i = 0; i < n; ++i) a[i] = static_cast<T>(static_cast<int64_t>(a[i]) / ranks);
  }
}

// U: an unsigned type wide enough that its product does not promote to a signed one.
template <class T, class U>
void reduce_integers(const ReduceArguments& arguments) {
  using Wide = typename WideOf<T>::type;
  T a[kIntegerBlock], x[kIntegerBlock];
  for (size_t at = 0; at < arguments.count; at += kIntegerBlock) {
    const size_t n = arguments.count - at < kIntegerBlock ? arguments.count - at : kIntegerBlock;
    for (size_t s = 0; s < arguments.source_count; ++s) {
      T* const into = s == 0 ? a : x;
      memcpy(into, arguments.sources[s] + at * sizeof(T), n * sizeof(T));
      const double prescale = s == 0 ? arguments.prescale_first : arguments.prescale;
      if (prescale != 1)
        for (size_t i = 0; i < n; ++i)
          into[i] = truncated<T>(static_cast<Wide>(into[i]) * static_cast<Wide>(prescale));
      if (s != 0) combine_integers<U>(arguments.op, a, x, n);
    }
    finish_integers(arguments, a, n);
    for (size_t t = 0; t < arguments.destination_count; ++t)
      memcpy(arguments.destinations[t] + at * sizeof(T), a, n * sizeof(T));
  }
}

inline void reduce_bools(const ReduceArguments& arguments) {
  const bool either = arguments.op == ReduceOp::kSum || arguments.op == ReduceOp::kMax;
  uint8_t a[kIntegerBlock], x[kIntegerBlock];
  for (size_t at = 0; at < arguments.count; at += kIntegerBlock) {
    const size_t n = arguments.count - at < kIntegerBlock ? arguments.count - at : kIntegerBlock;
    for (size_t s = 0; s < arguments.source_count; ++s) {
      uint8_t* const into = s == 0 ? a : x;
      memcpy(into, arguments.sources[s] + at, n);
      for (size_t i = 0; i < n; ++i) into[i] = into[i] != 0;
      if (s == 0) continue;
      if (either)
        for (size_t i = 0; i < n; ++i) a[i] |= x[i];
      else
        for (size_t i = 0; i < n; ++i) a[i] &= x[i];
    }
    for (size_t t = 0; t < arguments.destination_count; ++t)
      memcpy(arguments.destinations[t] + at, a, n);
  }
}

}  // namespace hvd::HWY_NAMESPACE
