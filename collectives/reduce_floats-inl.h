// Floats: sources in order, in an accumulator of 32 (64) bits, rounded once.
//
// Whatever the vector's length, each element goes through the same operations; the tail goes
// through them one lane at a time.
#pragma once

#include <hwy/cache_control.h>
#include <hwy/highway.h>
#include <string.h>

#include "collectives/reduce_kernels.h"

namespace hvd::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET == HWY_SCALAR
// No instruction converts here: bit by bit, to nearest, ties to even.
inline float float_of_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half & 0x7c00, mantissa = half & 0x3ff;
  float value;
  if (exponent == 0) {
    value = static_cast<float>(mantissa) * 0x1p-24f;  // exact
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits |= sign;
    memcpy(&value, &bits, 4);
    return value;
  }
  const uint32_t high = exponent == 0x7c00 ? 0x7f800000u : ((exponent >> 10) + 112u) << 23;
  const uint32_t bits = sign | high | mantissa << 13;
  memcpy(&value, &bits, 4);
  return value;
}

inline uint16_t half_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (bits >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and more
  if (bits < 0x38800000) {  // below the smallest normal: let the adder round
    float magnitude;
    memcpy(&magnitude, &bits, 4);
    magnitude += 0.5f;
    memcpy(&bits, &magnitude, 4);
    return static_cast<uint16_t>(sign | (bits - 0x3f000000));
  }
  bits += 0xc8000fff + (bits >> 13 & 1);
  return static_cast<uint16_t>(sign | bits >> 13);
}
#endif

// How elements of a type become lanes of the accumulator, and back.
struct Float32 {
  using Element = float;
  using Accumulator = float;
  template <class D>
  static hn::Vec<D> load(D d, const Element* from) {
    return hn::LoadU(d, from);
  }
  template <class D>
  static void store(D d, hn::Vec<D> value, Element* to) {
    hn::StoreU(value, d, to);
  }
};

struct Float64 : Float32 {
  using Element = double;
  using Accumulator = double;
  template <class D>
  static hn::Vec<D> load(D d, const Element* from) {
    return hn::LoadU(d, from);
  }
  template <class D>
  static void store(D d, hn::Vec<D> value, Element* to) {
    hn::StoreU(value, d, to);
  }
};

struct Float16 {
  using Element = uint16_t;
  using Accumulator = float;
#if HWY_TARGET == HWY_SCALAR
  template <class D>
  static hn::Vec<D> load(D d, const Element* from) {
    return hn::Set(d, float_of_half(*from));
  }
  template <class D>
  static void store(D, hn::Vec<D> value, Element* to) {
    *to = half_of_float(hn::GetLane(value));
  }
#else
  template <class D>
  static hn::Vec<D> load(D d, const Element* from) {
    const hn::Rebind<hwy::float16_t, D> half;
    const hn::Rebind<uint16_t, D> bits;
    return hn::PromoteTo(d, hn::BitCast(half, hn::LoadU(bits, from)));
  }
  template <class D>
  static void store(D, hn::Vec<D> value, Element* to) {
    const hn::Rebind<hwy::float16_t, D> half;
    const hn::Rebind<uint16_t, D> bits;
    hn::StoreU(hn::BitCast(bits, hn::DemoteTo(half, value)), bits, to);
  }
#endif
};

// By integers: the conversion instruction of AVX512-BF16 flushes denormals.
struct Bfloat16 {
  using Element = uint16_t;
  using Accumulator = float;
  template <class D>
  static hn::Vec<D> load(D d, const Element* from) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, from))));
  }
  template <class D>
  static void store(D, hn::Vec<D> value, Element* to) {
    const hn::Rebind<uint16_t, D> d16;
    const hn::RebindToUnsigned<D> d32;
    const hn::RebindToSigned<D> i32;
    const auto bits = hn::BitCast(d32, value);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff))));
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(i32, rounded)), d16, to);
  }
};

template <ReduceOp kOp, class D>
hn::Vec<D> combine(D, hn::Vec<D> a, hn::Vec<D> x) {
  if constexpr (kOp == ReduceOp::kProduct) return hn::Mul(a, x);
  // A NaN is passed on; of equal values (-0 and +0) the first one stays.
  if constexpr (kOp == ReduceOp::kMin)
    return hn::IfThenElse(hn::Or(hn::Lt(x, a), hn::IsNaN(x)), x, a);
  if constexpr (kOp == ReduceOp::kMax)
    return hn::IfThenElse(hn::Or(hn::Lt(a, x), hn::IsNaN(x)), x, a);
  return hn::Add(a, x);
}

template <class D>
hn::Vec<D> with_one_nan(D d, hn::Vec<D> value) {
  using Bits = hn::RebindToUnsigned<D>;
  constexpr bool kDouble = sizeof(hn::TFromD<D>) == 8;
  const auto canonical = static_cast<hn::TFromD<Bits>>(kDouble ? 0x7ff8000000000000 : 0x7fc00000);
  return hn::IfThenElse(hn::IsNaN(value), hn::BitCast(d, hn::Set(Bits(), canonical)), value);
}

// A pointer to element `i` without a promise of alignment; one lane goes through a local.
template <class Float, class D>
hn::Vec<D> load_at(D d, const std::byte* base, size_t i) {
  using Element = typename Float::Element;
  if constexpr (hn::MaxLanes(D()) == 1) {
    Element element;
    memcpy(&element, base + i * sizeof element, sizeof element);
    return Float::load(d, &element);
  } else {
    return Float::load(d, reinterpret_cast<const Element*>(base + i * sizeof(Element)));
  }
}

template <class Float, class D>
void store_at(D d, hn::Vec<D> value, std::byte* base, size_t i) {
  using Element = typename Float::Element;
  if constexpr (hn::MaxLanes(D()) == 1) {
    Element element;
    Float::store(d, value, &element);
    memcpy(base + i * sizeof element, &element, sizeof element);
  } else {
    Float::store(d, value, reinterpret_cast<Element*>(base + i * sizeof(Element)));
  }
}

template <class D>
struct Factors {
  hn::Vec<D> first, pre, post;  // of the first source, the others, the result
};

// Where sources and destinations are. With counts that the compiler knows these are registers,
// which no store makes it read again: sums of two tensors take a third less time in the cache.
template <size_t kSources, size_t kDestinations>
class Places {
 public:
  explicit Places(const ReduceArguments& arguments) {
    for (size_t s = 0; s < kSources; ++s) sources_[s] = arguments.sources[s];
    for (size_t t = 0; t < kDestinations; ++t) destinations_[t] = arguments.destinations[t];
  }
  static constexpr size_t source_count() { return kSources; }
  static constexpr size_t destination_count() { return kDestinations; }
  const std::byte* source(size_t s) const { return sources_[s]; }
  std::byte* destination(size_t t) const { return destinations_[t]; }

 private:
  const std::byte* sources_[kSources];
  std::byte* destinations_[kDestinations];
};

template <>
class Places<0, 0> {  // any counts
 public:
  explicit Places(const ReduceArguments& arguments)
      : sources_(arguments.sources),
        destinations_(arguments.destinations),
        source_count_(arguments.source_count),
        destination_count_(arguments.destination_count) {}
  size_t source_count() const { return source_count_; }
  size_t destination_count() const { return destination_count_; }
  const std::byte* source(size_t s) const { return sources_[s]; }
  std::byte* destination(size_t t) const { return destinations_[t]; }

 private:
  const std::byte* const* sources_;
  std::byte* const* destinations_;
  size_t source_count_, destination_count_;
};

// kVectors vectors from element i on: all sources in order, then all destinations.
template <class Float, ReduceOp kOp, bool kPre, bool kPost, int kVectors, class D, class Where>
HWY_INLINE void reduce_step(D d, const Where& places, const Factors<D>& factors, size_t i) {
  const size_t lanes = hn::Lanes(d);
  hn::Vec<D> a[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    a[v] = load_at<Float>(d, places.source(0), i + static_cast<size_t>(v) * lanes);
    if constexpr (kPre) a[v] = hn::Mul(a[v], factors.first);
  }
  for (size_t s = 1; s < places.source_count(); ++s) {
    for (int v = 0; v < kVectors; ++v) {
      auto x = load_at<Float>(d, places.source(s), i + static_cast<size_t>(v) * lanes);
      if constexpr (kPre) x = hn::Mul(x, factors.pre);
      a[v] = combine<kOp>(d, a[v], x);
    }
  }
  for (int v = 0; v < kVectors; ++v) {
    if constexpr (kPost) a[v] = hn::Mul(a[v], factors.post);
    a[v] = with_one_nan(d, a[v]);
  }
  for (size_t t = 0; t < places.destination_count(); ++t)
    for (int v = 0; v < kVectors; ++v)
      store_at<Float>(d, a[v], places.destination(t), i + static_cast<size_t>(v) * lanes);
}

// Calls for the lines of all sources that a later step will need, see `fetch_ahead`. From 1 to 8
// KiB ahead are equal. It goes beyond the end too, which reads nothing and is nearly always wanted
// next.
template <size_t kBytes, class Where>
HWY_INLINE void prefetch_step(const Where& places, size_t at) {
  constexpr size_t kAheadBytes = 2048, kLineBytes = 64;
  for (size_t s = 0; s < places.source_count(); ++s) {
    const std::byte* const from = places.source(s) + at + kAheadBytes;
    for (size_t line = 0; line < kBytes; line += kLineBytes) hwy::Prefetch(from + line);
  }
}

template <class Float, ReduceOp kOp, bool kPre, bool kPost, size_t kSources = 0,
          size_t kDestinations = 0>
void reduce_loop(const ReduceArguments& arguments, double factor) {
  using Element = typename Float::Element;
  using Accumulator = typename Float::Accumulator;
  using Full = hn::ScalableTag<Accumulator>;
  using One = hn::CappedTag<Accumulator, 1>;
  const Full d;
  const One one;
  const Places<kSources, kDestinations> places(arguments);
  const auto first = static_cast<Accumulator>(arguments.prescale_first);
  const auto pre = static_cast<Accumulator>(arguments.prescale);
  const auto post = static_cast<Accumulator>(factor);
  const Factors<Full> factors{hn::Set(d, first), hn::Set(d, pre), hn::Set(d, post)};
  const Factors<One> factors_one{hn::Set(one, first), hn::Set(one, pre), hn::Set(one, post)};
  constexpr int kVectors = 4;
  constexpr size_t kStep = kVectors * hn::MaxLanes(Full());
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + kVectors * lanes <= arguments.count; i += kVectors * lanes) {
    if (arguments.fetch_ahead) prefetch_step<kStep * sizeof(Element)>(places, i * sizeof(Element));
    reduce_step<Float, kOp, kPre, kPost, kVectors>(d, places, factors, i);
  }
  for (; i + lanes <= arguments.count; i += lanes)
    reduce_step<Float, kOp, kPre, kPost, 1>(d, places, factors, i);
  for (; i < arguments.count; ++i)
    reduce_step<Float, kOp, kPre, kPost, 1>(one, places, factors_one, i);
}

template <class Float, size_t kSources, size_t kDestinations>
void sum_floats(const ReduceArguments& arguments, double factor) {
  constexpr ReduceOp kSum = ReduceOp::kSum;
  if (arguments.prescale != 1 || arguments.prescale_first != 1)
    reduce_loop<Float, kSum, true, true, kSources, kDestinations>(arguments, factor);
  else if (factor != 1)
    reduce_loop<Float, kSum, false, true, kSources, kDestinations>(arguments, factor);
  else
    reduce_loop<Float, kSum, false, false, kSources, kDestinations>(arguments, factor);
}

template <class Float>
void reduce_floats(const ReduceArguments& arguments) {
  const bool average = arguments.op == ReduceOp::kAverage;
  const double share = average ? 1.0 / static_cast<double>(arguments.inputs) : 1.0;
  const double factor = arguments.postscale * share;
  switch (arguments.op) {
    case ReduceOp::kMin:
      return reduce_loop<Float, ReduceOp::kMin, true, true>(arguments, factor);
    case ReduceOp::kMax:
      return reduce_loop<Float, ReduceOp::kMax, true, true>(arguments, factor);
    case ReduceOp::kProduct:
      return reduce_loop<Float, ReduceOp::kProduct, true, true>(arguments, factor);
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kAdasum:
      break;
  }
  const size_t from = arguments.source_count, into = arguments.destination_count;
  if (from == 2 && into == 1) return sum_floats<Float, 2, 1>(arguments, factor);
  if (from == 2 && into == 2) return sum_floats<Float, 2, 2>(arguments, factor);
  if (from == 3 && into == 1) return sum_floats<Float, 3, 1>(arguments, factor);
  if (from == 3 && into == 3) return sum_floats<Float, 3, 3>(arguments, factor);
  if (from == 4 && into == 1) return sum_floats<Float, 4, 1>(arguments, factor);
  if (from == 4 && into == 4) return sum_floats<Float, 4, 4>(arguments, factor);
  return sum_floats<Float, 0, 0>(arguments, factor);
}

}  // namespace hvd::HWY_NAMESPACE
