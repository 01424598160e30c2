// FNV-1a, for texts that have to agree on all ranks.
#pragma once

#include <cstdint>
#include <string_view>

namespace hvd {

inline uint64_t text_hash(std::string_view text, uint64_t seed = 14695981039346656037u) {
  uint64_t hash = seed;
  for (const char byte : text) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211u;
  return hash;
}

}  // namespace hvd
