// One header for all kinds, then name and text; one table says what each kind may have.
#include "runtime/engine/log_messages.h"

#include <string.h>

#include <algorithm>
#include <bit>
#include <iterator>

#include "runtime/engine/coordinator.h"
#include "runtime/engine/log_words.h"

namespace hvd {
namespace {

using Kind = LogMessage::Kind;

static_assert(std::endian::native == std::endian::little, "headers travel as they lie in memory");

struct Header {
  static constexpr uint32_t kMagic = 0x4c647668;  // "hvdL"

  uint32_t magic = kMagic;
  uint32_t epoch = 0;
  uint16_t kind = 0;
  uint16_t name_bytes = 0, text_bytes = 0;
  uint16_t zero = 0;
  uint32_t rank = 0;
  uint32_t number = 0;
  uint64_t hash = 0;
  uint64_t value = 0;
};
static_assert(sizeof(Header) == 40);

struct Rule {
  Kind kind;
  bool to_decider, from_decider;
  bool of_sender;  // `rank` is one of the sender's host
  size_t name_min, name_max, text_max;
  uint64_t number_end, value_end;  // 0: any
};

constexpr size_t kNameMost = LogWords::kNameBytes - 1;
constexpr size_t kDescriptionMost = LogWords::kDescriptionBytes - 1;
constexpr size_t kTextMost = LogWords::kTextBytes - 1;
constexpr auto kLastEntryKind = static_cast<uint64_t>(LogEntry::Kind::kRefuse);

constexpr Rule kRules[] = {
    {Kind::kAnnounce, true, false, true, 1, kNameMost, kDescriptionMost, 2, 1},
    {Kind::kReady, true, false, true, 0, 0, 0, LogWords::kNamesMax / 64, 0},
    {Kind::kOverdue, true, false, true, 0, 0, 0, LogWords::kOverdueKinds, 0},
    {Kind::kWaits, true, false, true, 0, 0, kDescriptionMost, 0, 0},
    {Kind::kAnswer, true, false, true, 0, 0, 0, 0, 1},
    {Kind::kEntry, false, true, false, 0, kNameMost, kTextMost, LogWords::kNamesMax,
     kLastEntryKind + 1},
    {Kind::kQuestion, false, true, false, 0, 0, 0, 0, 1},
    {Kind::kLeft, true, true, false, 0, 0, 0, 1, 1},
    {Kind::kActed, true, false, true, 0, 0, 0, 1, 0},
};

std::string fault_of(const Header& header, uint32_t epoch, const LogSender& sender) {
  if (header.magic != Header::kMagic || header.zero != 0) return "no message of the log";
  if (header.epoch != epoch)
    return "a message of the log of epoch " + std::to_string(header.epoch) + " in epoch " +
           std::to_string(epoch);
  const auto* const rule = std::ranges::find_if(
      kRules, [&](const Rule& one) { return static_cast<uint16_t>(one.kind) == header.kind; });
  if (rule == std::end(kRules) || !(sender.decides ? rule->from_decider : rule->to_decider))
    return "a message of the log of kind " + std::to_string(header.kind);
  const auto rank = static_cast<int64_t>(header.rank);
  const bool is_there = rank >= sender.host.first && rank < sender.host.first + sender.host.count;
  if (rule->of_sender || !sender.decides ? !is_there : rank >= sender.world_size)
    return "a message of the log about rank " + std::to_string(rank);
  if (header.name_bytes < rule->name_min || header.name_bytes > rule->name_max)
    return "a message of the log with a name of " + std::to_string(header.name_bytes) + " bytes";
  if (header.text_bytes > rule->text_max)
    return "a message of the log with a text of " + std::to_string(header.text_bytes) + " bytes";
  if ((rule->number_end != 0 && header.number >= rule->number_end) ||
      (rule->value_end != 0 && header.value >= rule->value_end))
    return "a message of the log with the number " + std::to_string(header.number) +
           " and the value " + std::to_string(header.value);
  const bool named = header.kind == static_cast<uint16_t>(Kind::kEntry) &&
                     header.value != static_cast<uint64_t>(LogEntry::Kind::kRun);
  return named && header.name_bytes == 0 ? "an entry of the log without a name" : "";
}

std::string text_at(std::span<const std::byte> bytes, size_t at, size_t count) {
  return {reinterpret_cast<const char*>(bytes.data()) + at, count};
}

}  // namespace

void encode(const LogMessage& message, uint32_t epoch, std::vector<std::byte>& behind) {
  Header header;
  header.epoch = epoch;
  header.kind = static_cast<uint16_t>(message.kind);
  header.name_bytes = static_cast<uint16_t>(message.name.size());
  header.text_bytes = static_cast<uint16_t>(message.text.size());
  header.rank = message.rank;
  header.number = message.number;
  header.hash = message.hash;
  header.value = message.value;
  const auto append = [&](const void* data, size_t count) {
    const auto* const first = static_cast<const std::byte*>(data);
    behind.insert(behind.end(), first, first + count);
  };
  append(&header, sizeof header);
  append(message.name.data(), message.name.size());
  append(message.text.data(), message.text.size());
}

LogDecoded decode_log_message(std::span<const std::byte> bytes, uint32_t epoch,
                              const LogSender& sender) {
  LogDecoded decoded;
  Header header;
  if (bytes.size() < sizeof header) return decoded;
  memcpy(&header, bytes.data(), sizeof header);
  decoded.fault = fault_of(header, epoch, sender);
  if (!decoded.fault.empty()) return decoded;
  const size_t end = sizeof header + header.name_bytes + header.text_bytes;
  if (bytes.size() < end) return decoded;
  LogMessage message{.kind = static_cast<Kind>(header.kind),
                     .rank = header.rank,
                     .number = header.number,
                     .hash = header.hash,
                     .value = header.value,
                     .name = text_at(bytes, sizeof header, header.name_bytes),
                     .text = text_at(bytes, sizeof header + header.name_bytes, header.text_bytes)};
  if (message.name.find('\0') != std::string::npos ||
      message.text.find('\0') != std::string::npos) {
    decoded.fault = "a message of the log with a byte of value 0 in its words";
    return decoded;
  }
  decoded.bytes = end;
  decoded.message = std::move(message);
  return decoded;
}

}  // namespace hvd
