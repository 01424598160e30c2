// A digest of some words of a step's results, by which ranks see that theirs differ.
//
// Pure, and without LibTorch. To read all would take as long as a part of the step.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd {

// Words of 8 bytes of a result that a step looks at; one of no more of them is looked at whole.
// Where they lie in no cache, eight take a tenth of a microsecond.
inline constexpr size_t kDigestWords = 8;

// Of a further result, in parts of equal size a word of each, so that what changes most of it, as
// to scale or clear it, changes the digest. Which word of its part moves with `step`: all have had
// their turn once.
uint64_t digest_of(uint64_t digest, const std::byte* result, size_t bytes, uint64_t step);

}  // namespace hvd
