// Which words, and how they are mixed.
#include "runtime/torch/result_digest.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace hvd {

uint64_t digest_of(uint64_t digest, const std::byte* result, size_t bytes, uint64_t step) {
  constexpr size_t kWord = sizeof digest;
  const size_t words = (bytes + kWord - 1) / kWord;
  const size_t part = std::max<size_t>((words + kDigestWords - 1) / kDigestWords, 1);
  for (size_t word = step % part; word < words; word += part) {
    const size_t at = std::min(word * kWord, bytes - std::min(bytes, kWord));
    uint64_t value = 0;
    std::memcpy(&value, result + at, std::min(bytes, kWord));
    digest = std::rotl((digest ^ value) * 0x9e3779b97f4a7c15u, 29);
  }
  return digest;
}

}  // namespace hvd
