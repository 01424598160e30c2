// What hosts tell each other about the log: there and back, and what nobody may say.
#include "runtime/engine/log_messages.h"

#include <string.h>

#include "runtime/engine/coordinator.h"
#include "runtime/engine/log_words.h"
#include "tests/support/catch.h"

using namespace hvd;
using Kind = LogMessage::Kind;

namespace {

constexpr uint32_t kEpoch = 3;
const LogSender kLeader{.host = {.first = 2, .count = 2}, .world_size = 4};
const LogSender kDecider{.decides = true, .host = {.first = 0, .count = 2}, .world_size = 4};

std::vector<std::byte> encoded(const LogMessage& message) {
  std::vector<std::byte> bytes;
  encode(message, kEpoch, bytes);
  return bytes;
}

std::string fault_of(const LogMessage& message, const LogSender& sender) {
  const LogDecoded decoded = decode_log_message(encoded(message), kEpoch, sender);
  CHECK(decoded.fault.empty() == decoded.message.has_value());
  return decoded.fault;
}

const std::vector<LogMessage> kFromLeader = {
    {.kind = Kind::kAnnounce, .rank = 3, .hash = 9, .name = "loss", .text = "allreduce"},
    {.kind = Kind::kAnnounce, .rank = 3, .number = 1, .hash = 9, .name = "loss", .text = "sum"},
    {.kind = Kind::kReady, .rank = 2, .number = 15, .value = ~uint64_t{0}},
    {.kind = Kind::kOverdue, .rank = 3, .number = 1, .hash = 9, .value = 100},
    {.kind = Kind::kWaits, .rank = 2, .number = ~0u, .hash = 9, .value = 4, .text = "allreduce"},
    {.kind = Kind::kActed, .rank = 3, .value = 1'000'000},
    {.kind = Kind::kAnswer, .rank = 2, .number = 77},
    {.kind = Kind::kLeft, .rank = 3},
};
const std::vector<LogMessage> kFromDecider = {
    {.kind = Kind::kEntry, .number = 1023, .value = 0},
    {.kind = Kind::kEntry, .number = 7, .hash = 1, .value = 1, .name = "loss"},
    {.kind = Kind::kEntry, .value = 3, .name = "loss", .text = std::string(1023, 'x')},
    {.kind = Kind::kQuestion, .number = 77},
    {.kind = Kind::kLeft, .rank = 1},
};

}  // namespace

TEST_CASE("log messages: one after the other come out as they went in, however they are cut") {
  for (const bool decides : {false, true}) {
    const auto& all = decides ? kFromDecider : kFromLeader;
    std::vector<std::byte> bytes;
    for (const LogMessage& message : all) encode(message, kEpoch, bytes);
    std::span<const std::byte> rest = bytes;
    for (const LogMessage& message : all) {
      const size_t size = encoded(message).size();
      for (size_t cut = 0; cut < size; ++cut) {
        const LogDecoded part =
            decode_log_message(rest.first(cut), kEpoch, decides ? kDecider : kLeader);
        REQUIRE_FALSE(part.message);
        REQUIRE(part.fault.empty());
      }
      const LogDecoded whole = decode_log_message(rest, kEpoch, decides ? kDecider : kLeader);
      REQUIRE(whole.message);
      CHECK(*whole.message == message);
      REQUIRE(whole.bytes == size);
      rest = rest.subspan(size);
    }
    CHECK(rest.empty());
  }
}

TEST_CASE("log messages: a kind goes one way") {
  for (const LogMessage& message : kFromLeader)
    if (message.kind != Kind::kLeft)
      CHECK_THAT(fault_of(message, kDecider), Catch::Contains("kind"));
  for (const LogMessage& message : kFromDecider)
    if (message.kind != Kind::kLeft)
      CHECK_THAT(fault_of(message, kLeader), Catch::Contains("kind"));
}

TEST_CASE("log messages: a leader speaks of the ranks of its host") {
  for (LogMessage message : kFromLeader)
    for (const uint32_t rank : {0u, 1u, 4u, ~0u}) {
      message.rank = rank;
      CHECK(fault_of(message, kLeader) ==
            "a message of the log about rank " + std::to_string(rank));
    }
  CHECK_FALSE(fault_of({.kind = Kind::kLeft, .rank = 4}, kDecider).empty());
}

TEST_CASE("log messages: more than fits is a fault, and so are words that no text has") {
  const LogMessage& announcement = kFromLeader[0];
  LogMessage message = announcement;
  message.name = "";
  CHECK_THAT(fault_of(message, kLeader), Catch::Contains("name of 0 bytes"));
  message.name.resize(LogWords::kNameBytes, 'x');
  CHECK_THAT(fault_of(message, kLeader), Catch::Contains("name of 256 bytes"));
  message = announcement;
  message.text.resize(LogWords::kDescriptionBytes, 'x');
  CHECK_THAT(fault_of(message, kLeader), Catch::Contains("text of 256 bytes"));
  message = announcement;
  message.name = std::string("a\0b", 3);
  CHECK_THAT(fault_of(message, kLeader), Catch::Contains("byte of value 0"));
  message = announcement;
  message.number = 2;
  CHECK_THAT(fault_of(message, kLeader), Catch::Contains("the number 2"));
  CHECK_THAT(fault_of({.kind = Kind::kReady, .rank = 2, .number = 16}, kLeader),
             Catch::Contains("the number 16"));
  CHECK_THAT(fault_of({.kind = Kind::kOverdue, .rank = 2, .number = 3}, kLeader),
             Catch::Contains("the number 3"));
  CHECK_THAT(fault_of({.kind = Kind::kEntry, .number = 1024}, kDecider),
             Catch::Contains("the number 1024"));
  CHECK_THAT(fault_of({.kind = Kind::kEntry, .value = 4, .name = "x"}, kDecider),
             Catch::Contains("the value 4"));
  CHECK_THAT(fault_of({.kind = Kind::kEntry, .value = 1}, kDecider),
             Catch::Contains("without a name"));
}

TEST_CASE("log messages: another epoch, and no message at all") {
  std::vector<std::byte> bytes;
  encode(kFromLeader[0], kEpoch - 1, bytes);
  CHECK(decode_log_message(bytes, kEpoch, kLeader).fault ==
        "a message of the log of epoch 2 in epoch 3");
  memcpy(bytes.data(), "GET / HTTP/1.1\r\n", 16);
  CHECK(decode_log_message(bytes, kEpoch, kLeader).fault == "no message of the log");
}
