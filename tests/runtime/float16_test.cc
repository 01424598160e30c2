// 16-bit floats: every value there and back, and rounding beside the definition.
#include "hvd/float16.h"

#include <cmath>
#include <limits>

#include "tests/support/catch.h"

using namespace hvd;

namespace {

// Between two neighbours the nearer one, the even one of two equally near.
template <class Half>
void check_rounding_between(uint16_t low) {
  Half one, other;
  one.bits = low;
  other.bits = static_cast<uint16_t>(low + 1);
  const double a = float(one), b = float(other), middle = (a + b) / 2;
  const uint16_t even = low % 2 == 0 ? one.bits : other.bits;
  REQUIRE(Half(static_cast<float>(middle)).bits == even);
  REQUIRE(Half(std::nextafter(static_cast<float>(middle), static_cast<float>(a))).bits == one.bits);
  REQUIRE(Half(std::nextafter(static_cast<float>(middle), static_cast<float>(b))).bits ==
          other.bits);
}

template <class Half>
void check_all(uint16_t infinity) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    Half half;
    half.bits = static_cast<uint16_t>(bits);
    const uint16_t magnitude = static_cast<uint16_t>(bits & 0x7fff);
    if (magnitude > infinity) {
      REQUIRE(std::isnan(float(half)));
      continue;
    }
    REQUIRE(Half(float(half)).bits == half.bits);
    if (bits < static_cast<uint32_t>(infinity) - 1)
      check_rounding_between<Half>(static_cast<uint16_t>(bits));
  }
}

}  // namespace

TEST_CASE("float16: every half survives, and every middle goes to the even neighbour") {
  check_all<float16>(0x7c00);
}

TEST_CASE("bfloat16: every value survives, and every middle goes to the even neighbour") {
  check_all<bfloat16>(0x7f80);
}

TEST_CASE("float16: the ends of the range") {
  CHECK(float(float16(65504.0f)) == 65504.0f);
  CHECK(float16(65519.0f).bits == 0x7bff);
  CHECK(float16(65520.0f).bits == 0x7c00);
  CHECK(float16(-1e30f).bits == 0xfc00);
  CHECK(float16(std::ldexp(1.0f, -25)).bits == 0);
  CHECK(float16(std::nextafter(std::ldexp(1.0f, -25), 1.0f)).bits == 1);
  CHECK(float16(-0.0f).bits == 0x8000);
  CHECK(float16(std::numeric_limits<float>::quiet_NaN()).bits == 0x7e00);
  CHECK(bfloat16(-std::numeric_limits<float>::quiet_NaN()).bits == 0x7fc0);
  CHECK(bfloat16(std::numeric_limits<float>::max()).bits == 0x7f80);
}
