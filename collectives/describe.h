// What an operation is, as a hash to compare and as words for an error.
//
// Pure. Everything that has to agree on all ranks goes into both.
#pragma once

#include <cstdint>
#include <string>

#include "collectives/communicator.h"

namespace hvd {

uint64_t mix_hash(uint64_t hash, uint64_t value);
// Of all that has to agree, begun from `seed`.
uint64_t hash_of(const Operation& operation, uint64_t seed);
// allreduce "loss" float32 [64, 10] Average
std::string describe(const Operation& operation);
// Part of it where its tensors lie there.
inline constexpr std::string_view kOnGpu = " on a GPU";

}  // namespace hvd
