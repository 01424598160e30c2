// What the hosts of a world tell each other about the log, as it travels on a link. Pure.
//
// On each host local rank 0, its *leader*, hears what the ranks there ask for. The leader that is
// rank 0 decides; the others pass on to it what they have heard, and append what comes back to the
// log of their host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collectives/world_shape.h"

namespace hvd {

struct LogMessage {
  enum class Kind : uint16_t {
    // To rank 0, each about one rank of the sender's host:
    kAnnounce = 1,  // it asks for `name`: all that has to agree as `hash`, in words as `text`;
                    // `number` 1: it is apart
    kReady,         // word `number` of its ready bits is `value`
    kOverdue,       // it has waited for `value` ms for `hash`, which is a LogWords::OverdueKind of
                    // this `number`; hash 0: no more
    kWaits,         // its init thread waits: LogWords::waits_for as `hash`, waits_in as `value`,
                    // steps as `number`, waits_text
    // To rank 0: all that was heard before question `number` has been sent.
    kAnswer,
    // From rank 0:
    kEntry,     // of the log: its kind as `value`, its id as `number`, `name`, `text`; `hash` 1:
                // some rank is apart
    kQuestion,  // what has been heard? Asks for everything, who waits for what, and an answer
    // Either way: `rank` has called shutdown(), and asked for nothing since.
    kLeft,
    // To rank 0, before an answer, about one rank of the sender's host:
    kActed  // it has acted on the first `value` entries of the log
  };

  Kind kind = Kind::kAnnounce;
  uint32_t rank = 0;
  uint32_t number = 0;
  uint64_t hash = 0;
  uint64_t value = 0;
  std::string name = {};
  std::string text = {};

  friend bool operator==(const LogMessage&, const LogMessage&) = default;
};

void encode(const LogMessage& message, uint32_t epoch, std::vector<std::byte>& behind);

// Who is at the other end of a link.
struct LogSender {
  bool decides = false;  // it is rank 0
  HostRanks host;        // whose leader it is
  int world_size = 1;
};

struct LogDecoded {
  std::optional<LogMessage> message;  // nothing and no fault: there is more to come
  size_t bytes = 0;                   // that it took
  std::string fault;                  // "a message of the log without a name"
};

// The first message of what came from that sender. What it may not say is a fault.
LogDecoded decode_log_message(std::span<const std::byte> bytes, uint32_t epoch,
                              const LogSender& sender);

}  // namespace hvd
