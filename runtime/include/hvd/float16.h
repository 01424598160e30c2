// 16-bit floating point elements: storage, and conversions from and to float.
//
// No arithmetic: convert, compute, convert back. Conversions from float round to nearest, ties to
// even, and make every NaN the quiet one; those to float are exact, and keep a NaN's bits.
#pragma once

#include <bit>
#include <cstdint>

namespace hvd {

// The upper half of a float: its range, 8 bits of precision.
struct bfloat16 {
  uint16_t bits = 0;

  constexpr bfloat16() = default;
  constexpr explicit bfloat16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    if ((word & 0x7fffffff) > 0x7f800000)
      bits = 0x7fc0;
    else
      bits = static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
  }
  constexpr explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
  friend constexpr bool operator==(bfloat16, bfloat16) = default;  // of the bits
};

// IEEE 754's half: up to 65504, 11 bits of precision.
struct float16 {
  uint16_t bits = 0;

  constexpr float16() = default;
  constexpr explicit float16(float value) {
    const uint32_t word = std::bit_cast<uint32_t>(value);
    const uint32_t sign = word >> 16 & 0x8000, magnitude = word & 0x7fffffff;
    uint32_t half;
    if (magnitude > 0x7f800000) {
      bits = 0x7e00;
      return;
    }
    if (magnitude >= 0x477ff000) {  // from 65520 on: rounds to infinity
      half = 0x7c00;
    } else if (magnitude >= 0x38800000) {  // normal as a half
      half = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
    } else if (magnitude < 0x33000000) {  // below half of the smallest
      half = 0;
    } else {
      const uint32_t shift = 126 - (magnitude >> 23);
      const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
      const uint32_t rest = mantissa & ((1u << shift) - 1), middle = 1u << (shift - 1);
      half = mantissa >> shift;
      half += rest > middle || (rest == middle && (half & 1) != 0);
    }
    bits = static_cast<uint16_t>(sign | half);
  }
  constexpr explicit operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    uint32_t exponent = bits >> 10 & 0x1f, mantissa = bits & 0x3ff;
    if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
    if (exponent == 0) {
      if (mantissa == 0) return std::bit_cast<float>(sign);
      exponent = 1;
      while ((mantissa & 0x400) == 0) {
        mantissa <<= 1;
        --exponent;
      }
      mantissa &= 0x3ff;
    }
    return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  }
  friend constexpr bool operator==(float16, float16) = default;  // of the bits
};

}  // namespace hvd
