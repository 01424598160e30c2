// Bytes that go past the caches arrive like any others.
#include "runtime/torch/stream_copy.h"

#include <algorithm>
#include <random>
#include <vector>

#include "tests/support/catch.h"

using namespace hvd;

TEST_CASE("stream copy: every size and alignment, and nothing beside it") {
  constexpr size_t kMost = 1100, kMargin = 128;
  constexpr std::byte kUntouched{0xA5};
  std::mt19937 random(1);
  std::vector<std::byte> source(kMost + kMargin), place(kMost + 2 * kMargin);
  for (std::byte& b : source) b = static_cast<std::byte>(random());
  for (size_t bytes = 0; bytes <= kMost; ++bytes) {
    const size_t from = bytes * 7 % 64, to = kMargin / 2 + bytes * 13 % 64;
    CAPTURE(bytes, from, to);
    std::ranges::fill(place, kUntouched);
    stream_copy(place.data() + to, source.data() + from, bytes);
    const auto begin = place.begin() + static_cast<std::ptrdiff_t>(to);
    const auto end = begin + static_cast<std::ptrdiff_t>(bytes);
    REQUIRE(std::equal(begin, end, source.begin() + static_cast<std::ptrdiff_t>(from)));
    REQUIRE(std::all_of(place.begin(), begin, [&](std::byte b) { return b == kUntouched; }));
    REQUIRE(std::all_of(end, place.end(), [&](std::byte b) { return b == kUntouched; }));
  }
}
