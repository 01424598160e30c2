// What ranks have to say of a refused operation, as it travels from link to link. Pure.
//
// Of ranks that say the same the lowest is enough, and a few different ones are.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "collectives/refusal.h"

namespace hvd {

inline constexpr size_t kSidesMost = 4;
inline constexpr size_t kSideBytesMost = 24 + kSideTextBytes;

// Both in rank order; so is the result, which is the same whoever merges them.
std::vector<Side> merge_sides(std::span<const Side> some, std::span<const Side> others);

std::vector<std::byte> encode_sides(std::span<const Side> sides);
// Nothing when the bytes are none that encode_sides() makes.
std::optional<std::vector<Side>> decode_sides(std::span<const std::byte> bytes);

}  // namespace hvd
