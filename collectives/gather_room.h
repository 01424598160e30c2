// Where an allgather's result goes: the caller's memory, which may have to be made first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "collectives/communicator.h"

namespace hvd {

struct GatherRoom {
  bool is_made = false;     // or refused; else there is more to do
  bool is_refused = false;  // and the operation says why
  std::byte* at = nullptr;  // of an empty result maybe none
};

// A piece of the way there, inside progress(). `counts`: elements by rank.
GatherRoom make_gather_room(Operation& operation, std::span<const uint64_t> counts);

// For a rank that was refused room, and hands the others' parts on all the same: memory for as long
// as the operation goes on. None for a result so large that it would only repeat the refusal, by
// the kernel's hand perhaps.
inline constexpr size_t kHandedOnMost = size_t{256} << 20;
std::unique_ptr<std::byte[]> room_to_hand_on(size_t bytes);

}  // namespace hvd
