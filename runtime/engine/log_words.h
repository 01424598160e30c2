// What one rank shares with the others about the log; lies in every rank's piece of a segment.
//
// Each word has one writer, the rank whose piece it is; `looks`, `rounds`, `logged`,
// `left_elsewhere`, `consumed` and `log` are used in local rank 0's piece only. All zero at first.
#pragma once

#include <string.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "collectives/arena.h"
#include "runtime/base/control_block.h"
#include "runtime/base/utf8.h"

namespace hvd {

// A text that is read while it may be written: what comes then is some text.
class SharedText {
 public:
  void store(const std::string& text) {
    std::array<char, sizeof words_> bytes{};
    copy_text(bytes.data(), bytes.size(), text);
    for (size_t i = 0; i < std::size(words_); ++i) {
      uint64_t word;
      memcpy(&word, bytes.data() + 8 * i, sizeof word);
      words_[i].store(word, std::memory_order_relaxed);
    }
  }
  std::string load() const {
    std::array<char, sizeof words_ + 1> bytes{};
    for (size_t i = 0; i < std::size(words_); ++i) {
      const uint64_t word = words_[i].load(std::memory_order_relaxed);
      memcpy(bytes.data() + 8 * i, &word, sizeof word);
    }
    return bytes.data();
  }

 private:
  std::atomic<uint64_t> words_[32];
};

struct LogWords {
  static constexpr size_t kNamesMax = 1024;     // names that have a bit
  static constexpr size_t kAnnouncements = 32;  // described and not yet read by the coordinator
  static constexpr size_t kEntries = 128;       // logged and not yet read by the slowest rank
  static constexpr size_t kNameBytes = 256;     // of an operation, zero included
  static constexpr size_t kDescriptionBytes = 256;
  static constexpr size_t kTextBytes = 1024;

  // `waits_in` is the number of a call in program order; with kOfList a step's, as all ranks have
  // it; with kInLog, of a named operation, how many calls this rank has made so far.
  static constexpr uint64_t kOfList = uint64_t{1} << 63, kInLog = uint64_t{1} << 62;
  static constexpr bool is_call(uint64_t waits_in) { return 0 < waits_in && waits_in < kInLog; }
  static constexpr bool is_in_log(uint64_t waits_in) {
    return waits_in >= kInLog && waits_in < kOfList;
  }
  static constexpr bool is_step(uint64_t waits_in) { return waits_in >= kOfList; }

  enum OverdueKind : uint32_t {
    kOverdueName,   // hash of a name that is not in the log
    kOverdueCall,   // between hosts: number of a call
    kOverdueEntry,  // between hosts: how many entries of the log all have to act on for it
    kOverdueKinds
  };

  struct Announcement {
    uint64_t hash;
    uint64_t apart;  // 0 or 1, as in the log's entry
    char name[kNameBytes];
    char text[kDescriptionBytes];
  };
  struct Entry {
    uint32_t kind;
    uint32_t id;
    uint32_t apart;
    char name[kNameBytes];
    char text[kTextBytes];
  };

  alignas(64) std::atomic<uint64_t> changes;    // grows with every submission: look again
  std::atomic<uint64_t> announced;              // announcements written
  std::atomic<uint64_t> ready[kNamesMax / 64];  // a bit flips with every submission of its name
  alignas(64) std::atomic<uint64_t> read;       // log entries this rank has acted on
  // What this rank's init thread has been waiting for for a while: hash of its name (of a step: how
  // many calls this rank has made so far); how many steps it has begun, of all lists; in words;
  // which one. Stored in this order; when it is over the last alone is 0, so that nobody takes a
  // part of one wait for another's.
  alignas(64) std::atomic<uint64_t> waits_for;
  std::atomic<uint32_t> steps;
  SharedText waits_text;  // of a call or step
  std::atomic<uint64_t> waits_in;
  // What this rank has waited for too long, or 0, and how long. The coordinator, which alone knows
  // who is missing, ends the wait.
  std::atomic<uint64_t> overdue[kOverdueKinds], overdue_ms;
  // Of a leader, with several hosts: how often it passed on what was overdue; how often it served
  // its host, or had nothing to serve, which it does all the time while something moves.
  std::atomic<uint64_t> looks, rounds;

  alignas(64) std::atomic<uint64_t> logged;  // entries appended
  std::atomic<uint32_t> left_elsewhere;  // 1 + a rank of another host that called shutdown(), or 0
  alignas(64) std::atomic<uint64_t> consumed[kLocalRanksMax];  // by rank: announcements read
  Announcement announcements[kAnnouncements];
  Entry log[kEntries];
};

// Those of all ranks of this host.
class HostLogWords {
 public:
  HostLogWords(std::shared_ptr<Segment> segment, uint64_t offset)
      : segment_(std::move(segment)), offset_(offset) {}

  LogWords& of(int local_rank) const {
    return *reinterpret_cast<LogWords*>(segment_->at(local_rank) + offset_);
  }

 private:
  std::shared_ptr<Segment> segment_;
  uint64_t offset_;
};

}  // namespace hvd
