// Memory that nobody may write any more: filled with a pattern, and looked at later.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace hvd {

inline constexpr std::byte kMemoryPattern{0x5a};

inline void write_pattern(std::span<std::byte> memory) {
  std::ranges::fill(memory, kMemoryPattern);
}

// How many bytes are not the pattern's any more.
inline std::ptrdiff_t changed_bytes(std::span<const std::byte> memory) {
  return std::ranges::count_if(memory, [](std::byte byte) { return byte != kMemoryPattern; });
}

}  // namespace hvd
