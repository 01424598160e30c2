#include "collectives/refusal.h"

#include <algorithm>
#include <vector>

namespace hvd {

void set_refusal(Operation& operation, std::span<const Side> sides) {
  constexpr size_t kSidesMost = 4;
  const bool agreed = std::all_of(sides.begin(), sides.end(), [&](const Side& side) {
    return side.hash == sides.front().hash;
  });
  std::vector<const Side*> named;
  std::string text;
  for (const Side& side : sides) {
    const std::string rank = "rank " + std::to_string(side.rank);
    if (agreed && side.unable) {
      operation.error = rank + ": " + side.text;
      operation.code = ErrorCode::kUnavailable;
      return;
    }
    const bool known = std::any_of(named.begin(), named.end(), [&](const Side* other) {
      return other->hash == side.hash && other->text == side.text;
    });
    if (known || named.size() == kSidesMost) continue;
    text += (text.empty() ? "" : ", ") + rank + (side.unable ? ": " : " called ") + side.text;
    named.push_back(&side);
  }
  operation.disagreed = true;
  operation.error = "ranks called different operations: " + text +
                    "; every rank has to call the same operations in the same order";
}

}  // namespace hvd
