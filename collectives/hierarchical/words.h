// What one rank says to the others of its host in one communicator: the layout of its part of a
// segment. A change of it is a new ControlBlock::kVersion.
//
// Only its rank writes it, every word but `closed` only grows, and zero means "nothing said yet".
// One operation is under way at a time, and nobody enters the next one before it has resolved this
// one: so who has entered `s` has read all that was said of `s - 1`, and two entries are enough.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collectives/refusal.h"
#include "collectives/tcp/sides.h"

namespace hvd {

// An operation, and how far a rank has come in it: from 1 up, for the half sequence number is 0 now
// and then, and no stamp may be.
constexpr uint64_t stamp(uint64_t sequence, uint64_t progress = 1) {
  return sequence << 32 | progress;
}
constexpr uint64_t progress_of(uint64_t stamp) { return stamp & 0xffffffff; }
// As far as that in this very operation: nobody is in a later one before this rank has entered it,
// and what an earlier one left may be as old as the communicator.
inline bool has_come(const std::atomic<uint64_t>& word, uint64_t wanted) {
  const uint64_t said = word.load(std::memory_order_acquire);
  return said >> 32 == wanted >> 32 && said >= wanted;
}

// What the leader says of an operation, as the progress of its stamp.
enum class Verdict : uint32_t { kAgreed = 1, kAgreedFar = 2, kDiffers = 3, kTold = 4 };

// Where a rank's tensor lies.
enum class TensorPlace : uint32_t {
  kNone,     // it has none, or peers have nothing to do with it
  kArena,    // at the address in the entry: leaders read and write it there
  kPrivate,  // in memory of its own: it goes through the areas
  kUnable,   // it cannot do its part; why, is said in `text`
};

struct alignas(64) HostEntry {
  uint64_t hash;   // all of it
  uint64_t count;  // allgather: elements of this rank
  uint64_t offset;
  uint32_t segment;
  TensorPlace place;
  std::atomic<uint64_t> word;
};

struct alignas(64) HostWords {
  HostEntry entries[2];
  alignas(64) std::atomic<uint64_t> verdict;  // by the leader
  std::atomic<uint64_t> heard;  // by the leader: 1 + steps of the exchange that are over
  alignas(64) std::atomic<uint64_t> brought;  // rounds in my input area
  alignas(64) std::atomic<uint64_t> summed;   // rounds that I read of everybody's
  alignas(64) std::atomic<uint64_t> given;    // rounds in my output area
  alignas(64) std::atomic<uint64_t> taken;    // rounds that I read of everybody's
  alignas(64) std::atomic<uint64_t> done;     // I neither read nor write any peer's memory for it
  alignas(64) std::atomic<uint64_t> told;     // the refused operation that `text` describes
  // From this operation on, nothing more comes of me: 1 + the last one that I shall ever enter; or
  // later that one, when I gave it up.
  std::atomic<uint64_t> closed;
  char text[kSideTextBytes];  // zero-terminated
  uint64_t sides_bytes;       // by the leader: what all have told
  std::byte sides[kSidesMost * kSideBytesMost];
};
static_assert(sizeof(HostEntry) == 64 && sizeof(HostWords) % 64 == 0);

}  // namespace hvd
