// Which changes of a result its digest tells.
#include "runtime/torch/result_digest.h"

#include <algorithm>
#include <vector>

#include "tests/support/catch.h"

namespace hvd {
namespace {

using Bytes = std::vector<std::byte>;

Bytes counted(size_t bytes) {
  Bytes result(bytes);
  for (size_t i = 0; i < bytes; ++i) result[i] = std::byte(i * 7 + i / 256);
  return result;
}

bool tells(const Bytes& one, const Bytes& other, uint64_t step) {
  return digest_of(1, one.data(), one.size(), step) !=
         digest_of(1, other.data(), other.size(), step);
}

}  // namespace

TEST_CASE("result digest: a small result is looked at whole in each step") {
  for (const size_t bytes : {1, 2, 7, 8, 9, 50, 63, 64}) {
    const Bytes one = counted(bytes);
    for (uint64_t step = 0; step < 20; ++step)
      for (size_t i = 0; i < bytes; ++i) {
        Bytes other = one;
        other[i] ^= std::byte{1};
        INFO(bytes << " bytes, byte " << i << ", step " << step);
        CHECK(tells(one, other, step));
      }
  }
  CHECK(digest_of(1, nullptr, 0, 3) == 1);
}

TEST_CASE("result digest: of a larger one each byte has its turn, whatever its size") {
  for (const size_t bytes : {200, 1000, 1024, 5003}) {
    const Bytes one = counted(bytes);
    const uint64_t part = (bytes + 63) / 64;
    for (size_t i = 0; i < bytes; ++i) {
      Bytes other = one;
      other[i] ^= std::byte{1};
      const auto told = [&](uint64_t step) { return tells(one, other, 1000 + step); };
      uint64_t steps = 0;
      for (uint64_t step = 0; step < part; ++step) steps += told(step) ? 1 : 0;
      INFO(bytes << " bytes, byte " << i);
      CHECK((steps == 1 || steps == 2));  // a last word may overlap the one before it
    }
  }
}

TEST_CASE("result digest: a change of a part of the result is told in each step") {
  const Bytes one = counted(1 << 20);
  for (uint64_t step = 0; step < 100; ++step)
    for (size_t from = 0; from < one.size(); from += one.size() / 8) {
      Bytes other = one;
      std::fill_n(other.begin() + std::ptrdiff_t(from), one.size() / 8, std::byte{});
      CHECK(tells(one, other, step));
    }
}

}  // namespace hvd
