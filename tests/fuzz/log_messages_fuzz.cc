// Fuzz target: what comes on the log's links between hosts. Whatever it is, it is a message within
// the limits or a fault, and never the coordinator's end.
//
// The first byte says who sent it: rank 0, or the leader of another host.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/engine/coordinator.h"
#include "runtime/engine/log_messages.h"
#include "runtime/engine/log_words.h"

namespace {

using namespace hvd;
using Kind = LogMessage::Kind;

constexpr uint32_t kEpoch = 1;

void check(const LogMessage& message, std::span<const std::byte> bytes) {
  std::vector<std::byte> again;
  encode(message, kEpoch, again);
  HVD_CHECK(std::ranges::equal(again, bytes), "a message says something else than its bytes");
  HVD_CHECK(message.name.size() < LogWords::kNameBytes, "a name is longer than its room");
  HVD_CHECK(message.text.size() < LogWords::kTextBytes, "a text is longer than its room");
}

// As rank 0 takes it in; what no true leader says is an error of the epoch.
void hear(Coordinator& coordinator, std::array<uint64_t, 2>& acted, const LogMessage& message) {
  const auto rank = static_cast<int>(message.rank);
  if (message.kind == Kind::kActed) acted.at(message.rank) = message.value;
  if (message.kind == Kind::kOverdue)
    HVD_CHECK(message.number < LogWords::kOverdueKinds &&
                  coordinator.waiting_entry(message.hash, acted).missing.size() <= acted.size(),
              "more are missing than there are");
  if (message.kind == Kind::kAnnounce)
    coordinator.announce(rank, {message.name, message.hash, message.text, message.number != 0});
  if (message.kind == Kind::kReady) coordinator.observe(rank, message.number, message.value);
  while (coordinator.next()) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  if (count == 0) return 0;
  const bool decides = bytes[0] % 2 == 1;
  const LogSender sender{
      .decides = decides, .host = {.first = 0, .count = decides ? 1 : 2}, .world_size = 2};
  Coordinator coordinator(2, LogWords::kNamesMax);
  std::array<uint64_t, 2> acted{};
  std::span rest(reinterpret_cast<const std::byte*>(bytes) + 1, count - 1);
  try {
    while (true) {
      const LogDecoded decoded = decode_log_message(rest, kEpoch, sender);
      HVD_CHECK(decoded.fault.empty() || !decoded.message, "a fault and a message");
      if (!decoded.message) return 0;
      check(*decoded.message, rest.first(decoded.bytes));
      if (!decides) hear(coordinator, acted, *decoded.message);
      rest = rest.subspan(decoded.bytes);
    }
  } catch (const Error&) {
    return 0;
  }
}
