// What one rank says in one communicator: the layout of its part of a segment. A change of it is a
// new ControlBlock::kVersion.
//
// Only its rank writes it, every word only grows, and zero means "nothing said yet". A slot is
// written again for operation s + kOperationSlots once everybody is done with s.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collectives/refusal.h"

namespace hvd {

inline constexpr uint64_t kOperationSlots = 8;  // operations that may be entered and not done with
inline constexpr size_t kSmallBytes = 2048;     // up to here an allreduce travels in lines
inline constexpr size_t kLineBytes = 56;        // a multiple of every element's size
inline constexpr size_t kLines = (kSmallBytes + kLineBytes - 1) / kLineBytes;
inline constexpr size_t kGatheredBytes = kLines * kLineBytes;  // of one rank, whole lines

// Staging of memory that peers cannot see: a ring of chunks. Three are the least, so that bringing
// a chunk, summing the one before and taking the one before that overlap; two would have to wait
// for each other. Smaller chunks have more of them: ranks that take turns on one CPU then take
// fewer turns.
inline constexpr size_t kStagingBytes = 768 * 1024;
inline constexpr size_t kChunkBytesMax = kStagingBytes / 3;
constexpr uint64_t staging_slots(size_t chunk_bytes) { return kStagingBytes / chunk_bytes; }
// Of broadcast and allgather: in one call, and in one chunk of staging.
inline constexpr size_t kCopyBytes = 64 * 1024;
static_assert(kCopyBytes <= kChunkBytesMax);
inline constexpr uint64_t kCopySlots = staging_slots(kCopyBytes);

// Data and word in one cache line: whoever sees the word sees the data, in one miss.
struct alignas(64) WordLine {
  std::byte data[kLineBytes];
  std::atomic<uint64_t> word;  // word_of()
};

// Low half of the sequence number, which says when, and of the hash, which says what. Never zero,
// also where both halves are.
inline uint64_t word_of(uint64_t sequence, uint64_t hash) {
  const uint64_t what = hash & 0xffffffff;
  return sequence << 32 | (what != 0 ? what : 1);
}
// A slot is not written again before all are done with it, so what was said of this operation or a
// later one is at most kOperationSlots ahead, also when the half number wraps. What is behind may
// be as old as the communicator: short tensors leave most lines alone. (A line that was left alone
// for just 2^32 operations, or up to kOperationSlots fewer, would count as come.)
inline bool reached(uint64_t word, uint64_t sequence) {
  return word != 0 &&
         static_cast<uint32_t>(word >> 32) - static_cast<uint32_t>(sequence) <= kOperationSlots;
}

// Where a rank's part lies.
enum class Place : uint32_t {
  kNone,    // it brings nothing
  kArena,   // at the address in the entry
  kInline,  // in the slot's payload
  kStaged,  // in memory of its own: it comes in chunks
  kUnable,  // it cannot do its part; why, is said in `text`
};

// Data of the first line of everything that is not a small allreduce.
struct OperationEntry {
  uint64_t hash;   // all of it
  uint64_t count;  // allgather: elements of this rank
  uint64_t offset;
  uint32_t segment;
  Place place;
  bool handed_over;  // allreduce in the arena: the partner sums my slice, too
};
static_assert(sizeof(OperationEntry) <= kLineBytes);

struct alignas(64) CommunicatorWords {
  WordLine lines[kOperationSlots][kLines];
  alignas(64) std::byte payload[kOperationSlots][kSmallBytes];
  alignas(64) std::atomic<uint64_t> done;     // I neither read nor write any peer's memory for
                                              // operations up to this one
  alignas(64) std::atomic<uint64_t> closed;   // 1 + the last operation I shall ever enter
  alignas(64) std::atomic<uint64_t> brought;  // chunks in my staging, over all operations
  alignas(64) std::atomic<uint64_t> summed;   // chunks of which I read, and wrote, my part
  alignas(64) std::atomic<uint64_t> told;     // the refused operation that `text` describes
  char text[kSideTextBytes];                  // zero-terminated
};
static_assert(sizeof(CommunicatorWords) % 64 == 0);

}  // namespace hvd
