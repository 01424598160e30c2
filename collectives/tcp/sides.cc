#include "collectives/tcp/sides.h"

#include <string.h>

#include <algorithm>
#include <tuple>

#include "runtime/base/utf8.h"

namespace hvd {
namespace {

struct Head {
  uint64_t hash;
  uint32_t rank;
  uint32_t unable;
  uint64_t text_bytes;
};
static_assert(sizeof(Head) + kSideTextBytes == kSideBytesMost);

bool says_the_same(const Side& one, const Side& other) {
  return one.hash == other.hash && one.unable == other.unable;
}

}  // namespace

std::vector<Side> merge_sides(std::span<const Side> some, std::span<const Side> others) {
  std::vector<Side> all(some.begin(), some.end()), merged;
  all.insert(all.end(), others.begin(), others.end());
  std::ranges::sort(all, {}, [](const Side& side) {  // one order on every rank
    return std::tuple(side.rank, side.hash, side.unable);
  });
  for (const Side& side : all) {
    const bool known =
        std::ranges::any_of(merged, [&](const Side& other) { return says_the_same(side, other); });
    if (!known && merged.size() < kSidesMost) merged.push_back(side);
  }
  return merged;
}

std::vector<std::byte> encode_sides(std::span<const Side> sides) {
  std::vector<std::byte> bytes;
  for (const Side& side : sides) {
    const std::string_view text = head_of(side.text, kSideTextBytes);
    const Head head{side.hash, static_cast<uint32_t>(side.rank), side.unable ? 1u : 0u,
                    text.size()};
    const size_t at = bytes.size();
    bytes.resize(at + sizeof head + text.size());
    memcpy(bytes.data() + at, &head, sizeof head);
    if (!text.empty()) memcpy(bytes.data() + at + sizeof head, text.data(), text.size());
  }
  return bytes;
}

std::optional<std::vector<Side>> decode_sides(std::span<const std::byte> bytes) {
  std::vector<Side> sides;
  while (!bytes.empty()) {
    Head head;
    if (bytes.size() < sizeof head || sides.size() == kSidesMost) return std::nullopt;
    memcpy(&head, bytes.data(), sizeof head);
    bytes = bytes.subspan(sizeof head);
    if (head.text_bytes > std::min(bytes.size(), kSideTextBytes)) return std::nullopt;
    const auto* text = reinterpret_cast<const char*>(bytes.data());
    sides.push_back({static_cast<int>(head.rank), head.hash, head.unable != 0,
                     std::string(text, head.text_bytes)});
    bytes = bytes.subspan(head.text_bytes);
  }
  return sides;
}

}  // namespace hvd
