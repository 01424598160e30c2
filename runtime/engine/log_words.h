// What one rank shares with the others about the log; lies in every rank's piece of a segment.
//
// Each word has one writer, the rank whose piece it is; `logged`, `consumed` and `log` are used in
// the coordinator's piece only. All zero at first.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/base/control_block.h"

namespace hvd {

struct LogWords {
  static constexpr size_t kNamesMax = 1024;     // names that have a bit
  static constexpr size_t kAnnouncements = 32;  // described and not yet read by the coordinator
  static constexpr size_t kEntries = 128;       // logged and not yet read by the slowest rank
  static constexpr size_t kNameBytes = 256;     // of an operation, zero included
  static constexpr size_t kDescriptionBytes = 256;
  static constexpr size_t kTextBytes = 1024;

  struct Announcement {
    uint64_t hash;
    char name[kNameBytes];
    char text[kDescriptionBytes];
  };
  struct Entry {
    uint32_t kind;
    uint32_t id;
    char name[kNameBytes];
    char text[kTextBytes];
  };

  alignas(64) std::atomic<uint64_t> changes;    // grows with every submission: look again
  std::atomic<uint64_t> announced;              // announcements written
  std::atomic<uint64_t> ready[kNamesMax / 64];  // a bit flips with every submission of its name
  alignas(64) std::atomic<uint64_t> read;       // log entries this rank has acted on
  // Hash of the name of the synchronous call in which this rank's init thread has been waiting for
  // a while, or 0.
  alignas(64) std::atomic<uint64_t> calling;
  // Hash of a name that this rank has waited for too long and that is not in the log, or 0; and how
  // long. The coordinator, which alone knows who is missing, ends the wait.
  std::atomic<uint64_t> overdue, overdue_ms;

  alignas(64) std::atomic<uint64_t> logged;                    // entries appended
  alignas(64) std::atomic<uint64_t> consumed[kLocalRanksMax];  // by rank: announcements read
  Announcement announcements[kAnnouncements];
  Entry log[kEntries];
};

}  // namespace hvd
