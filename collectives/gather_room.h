// Where an allgather's result goes: the caller's memory, which may have to be made first.
#pragma once

#include <cstddef>
#include <cstdint>
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

}  // namespace hvd
