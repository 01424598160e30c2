#include "collectives/gather_room.h"

#include <exception>
#include <new>
#include <numeric>
#include <string>

namespace hvd {

GatherRoom make_gather_room(Operation& operation, std::span<const uint64_t> counts) {
  const uint64_t bytes =
      size_of(operation.result.type) * std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  try {
    auto* const at = static_cast<std::byte*>(operation.allocate(counts));
    return {.is_made = at != nullptr || bytes == 0, .at = at};
  } catch (const std::exception& error) {
    operation.error =
        "allgather: no room for a result of " + std::to_string(bytes) + " bytes: " + error.what();
    operation.code = ErrorCode::kUnavailable;
    return {.is_made = true, .is_refused = true};
  }
}

std::unique_ptr<std::byte[]> room_to_hand_on(size_t bytes) {
  return std::unique_ptr<std::byte[]>(bytes <= kHandedOnMost ? new (std::nothrow) std::byte[bytes]
                                                             : nullptr);
}

}  // namespace hvd
