// A Communicator among the ranks of one host, on words and memory that all of them map.
//
// An operation is *entered* when its entry (a small allreduce: its lines) is published, *worked*
// when `done` reached its number, *resolved* when its outcome is known. It is complete on every
// survivor iff every rank's commit word reached it and its predecessor completed; the commit word
// is the lines (small allreduce), `done` (large allreduce, and whatever goes through staging), the
// entry (all else). It fails on every survivor if its predecessor failed. Else it is refused on all
// where entries are all here and differ, whatever came of lines, and fails on all where a frozen
// rank's commit word stayed below. Frozen is who is dead or quiet, and for entries and lines who
// closed before: the freezing word is read first, then the commit word once more. Only entering,
// and the work of a later large allreduce, overlap the resolving of an earlier operation.
//
// Sources: shared_memory_communicator (order and stages), outcome (waiting for peers, refusing,
// failing), allreduce, copies (broadcast and allgather).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/arena.h"
#include "collectives/backends.h"
#include "collectives/communicator.h"
#include "collectives/new_segment.h"
#include "collectives/operation_queue.h"
#include "collectives/peers.h"
#include "collectives/reduce.h"
#include "collectives/shared_memory/words.h"

namespace hvd {

class SharedMemoryCommunicator final : public Communicator {
 public:
  SharedMemoryCommunicator(Peers& peers, Arena& arena, const CommunicatorSpec& spec);

  int rank() const override { return me_; }
  int size() const override { return size_; }
  void start(Operation& operation) override;
  bool progress() override;
  bool idle() const override { return queue_.empty(); }
  void close() override;
  bool drained() const override;
  void fail_rest() override;
  void abort() noexcept override;
  std::vector<int> missing_ranks() const override;
  std::vector<int> not_entered() const override;
  uint64_t entered() const override { return entered_; }

  // For tests of the sequence numbers' wrap: the next operation is `sequence` + 1. On every rank,
  // before anybody starts anything.
  void start_at(uint64_t sequence);

 private:
  enum class Step : uint8_t { kWait, kMoved, kDone, kFailed };
  // What is known of an operation, in Operation::stage.
  enum Stage : uint32_t {
    kAllEntered = 1,  // every entry is here
    kDiffers = 2,     // and they are not the same, or somebody is unable: to be refused
    kTold = 4,        // this rank has described its side
    kRefusedHere = 8,
    kStagedData = 16,  // somebody's part comes in chunks: `done` is the commit word
    kHasReaders = 32,  // peers read this rank's tensor, or fault it in: it waits for them
    kCutLines = 64,    // a rank's lines will never all be here: refused, or failed
  };
  // How far the operation under work has come. Reset with each.
  struct Cursor {
    int rank = 0;                                 // this one's word, or data, is next
    size_t line = 0;                              // small allreduce
    int slices = 0;                               // arena allreduce: summed so far
    uint64_t at = 0;                              // elements or bytes
    uint64_t brought = 0, summed = 0, taken = 0;  // chunks
    uint64_t chunks = 0;
    std::byte* result = nullptr;  // allgather
    bool has_room = false;        // for it
  };
  // Counters that this rank found too low, last: whoever is still below it is waited for.
  struct Behind {
    std::atomic<uint64_t> CommunicatorWords::* counter = &CommunicatorWords::done;
    uint64_t value = 0;
    int root = -1;  // it alone, unless it has to wait itself; -1: all ranks
  };

  // The two kinds of allreduce: by lines, so many for its data, and by `done`.
  static bool is_small(const Operation& operation) {
    return operation.kind == OperationKind::kAllreduce && operation.result.bytes() <= kSmallBytes;
  }
  static size_t lines_of(const Operation& operation) {
    return std::max<size_t>(1, (operation.result.bytes() + kLineBytes - 1) / kLineBytes);
  }
  static bool is_large(const Operation& operation) {
    return operation.kind == OperationKind::kAllreduce && operation.result.bytes() > kSmallBytes;
  }

  // shared_memory_communicator.cc
  Step enter(Operation& operation);
  bool slot_is_free(uint64_t sequence);
  void write_lines(Operation& operation);
  void write_entry(Operation& operation);
  Place place_of(Operation& operation);
  bool is_far_behind(uint64_t sequence) const;
  bool work();
  Step work_on(Operation& operation);
  bool is_identity(const Operation& operation) const;
  void publish_done(const Operation& operation);
  bool resolve();
  void finish(Outcome outcome);
  void publish(std::atomic<uint64_t>& word, uint64_t value);
  void ring();

  // outcome.cc
  bool is_dead(int rank) const;
  bool is_gone(int rank) const;
  bool entry_is_frozen(int rank, uint64_t sequence) const;
  Step await_word(int rank, const std::atomic<uint64_t>& word, uint64_t sequence);
  Step await_entries(Operation& operation);
  Step await_counters(std::atomic<uint64_t> CommunicatorWords::* counter, uint64_t value);
  Step await_done(const Operation& operation);
  void notice_departure(int rank, uint64_t sequence);
  std::vector<int> ranks_behind() const;
  Step refuse(Operation& operation);
  void tell(const Operation& operation);
  bool is_agreed(const Operation& operation) const;
  std::string call_of(int rank, uint64_t sequence) const;
  void compose_refusal(Operation& operation) const;
  bool was_begun(const Operation& operation) const;

  // allreduce.cc
  Step small_allreduce(Operation& operation);
  Step await_lines(Operation& operation);
  Step arena_allreduce(Operation& operation);
  bool sum_block(const Operation& operation, const Slice& slice);
  Step staged_allreduce(Operation& operation);
  void sum_chunk(const Operation& operation, uint64_t chunk);
  void copy_chunk(const Operation& operation, uint64_t chunk, bool bring);

  // copies.cc
  Step broadcast(Operation& operation);
  Step staged_broadcast(Operation& operation);
  Step allgather(Operation& operation);
  void prepare_allgather(Operation& operation);
  void bring_part(const Operation& operation, uint64_t round);
  bool take_piece(Operation& operation);
  const std::byte* part_of(const Operation& operation, const OperationEntry& said) const;

  CommunicatorWords& words(int rank) const { return *words_[static_cast<size_t>(rank)]; }
  CommunicatorWords& mine() const { return *words_[static_cast<size_t>(me_)]; }
  WordLine* lines(int rank, uint64_t sequence) const {
    return words(rank).lines[sequence % kOperationSlots];
  }
  OperationEntry entry(int rank, uint64_t sequence) const;
  // Of a staged operation, whose chunks may be of another size than the one's before: when it
  // starts everybody is done with that one.
  std::byte* staging(int rank, uint64_t chunk, size_t chunk_bytes) const {
    return staging_[static_cast<size_t>(rank)] + chunk % staging_slots(chunk_bytes) * chunk_bytes;
  }
  int world_rank(int rank) const { return first_world_rank_ + rank; }
  bool fails(uint64_t sequence) const { return fail_from_ != 0 && sequence >= fail_from_; }

  // Constant after construction.
  Peers& peers_;
  Arena& arena_;
  ControlBlock& block_;
  const int me_;
  const int size_;
  const int partner_ = me_ ^ 1;  // the last of an odd number has none
  const int first_world_rank_;   // hosts number their ranks densely
  const bool has_staging_;
  const bool disjoint_;
  const std::string name_;  // of one that ranks may close alone
  const std::shared_ptr<Segment> segment_;
  std::vector<CommunicatorWords*> words_;
  std::vector<std::byte*> staging_;

  // Owned by the holder.
  OperationQueue queue_;
  Operation* to_enter_ = nullptr;  // the first one not entered
  Operation* to_work_ = nullptr;   // the first one not worked
  uint64_t entered_ = 0, worked_ = 0, resolved_ = 0;
  uint64_t everyone_done_ = 0;  // nobody's `done` was below this when last looked at
  uint64_t fail_from_ = 0;      // this and all later operations fail; 0: none
  uint64_t last_told_ = 0;
  uint64_t chunks_before_ = 0;  // of all earlier staged operations
  Cursor cursor_;
  Behind behind_;
  bool closed_ = false, departure_noticed_ = false;
  NewSegment new_segment_;
  // Filled anew for each operation, never allocated there.
  std::vector<std::byte> gathered_;  // small allreduce: everybody's data, kGatheredBytes each
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> destinations_;
  std::vector<uint64_t> counts_;  // allgather: elements of each rank
  std::vector<size_t> starts_;    // and the byte of the result where they go
};

}  // namespace hvd
