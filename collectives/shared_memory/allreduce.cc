// Three ways to the same bits: lines, the arena, and staging.
#include <string.h>

#include <algorithm>

#include "collectives/reduce.h"
#include "collectives/shared_memory/shared_memory_communicator.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

constexpr auto kAcquire = std::memory_order_acquire;

// Of every rank's tensor in one call: long enough that the calls cost nothing, short enough that
// deaths are looked at in time.
constexpr size_t kBlockBytesMax = 64 * 1024;
constexpr size_t kBlockBytesMin = 8 * 1024;
constexpr size_t kSliceBytes = 32 * 1024;  // of a chunk in staging, that one rank sums

size_t block_bytes(int ranks) {
  return std::clamp(2 * kBlockBytesMax / static_cast<size_t>(ranks), kBlockBytesMin,
                    kBlockBytesMax);
}

size_t chunk_bytes(int ranks) {
  return std::min(kChunkBytesMax, kSliceBytes * static_cast<size_t>(ranks));
}

Slice chunk_of(uint64_t chunk, size_t count, int ranks, DataType type) {
  const size_t each = chunk_bytes(ranks) / size_of(type);
  return {chunk * each, std::min(count, (chunk + 1) * each)};
}

}  // namespace

// Everybody's lines, into `gathered_` as they come; nothing is stored before all are here. Where
// they cannot come, or are another operation's, the entries decide, as on the ranks that differ.
SharedMemoryCommunicator::Step SharedMemoryCommunicator::await_lines(Operation& operation) {
  const uint64_t sequence = operation.sequence;
  const uint64_t expected = word_of(sequence, operation.hash);
  const size_t count = lines_of(operation);
  for (; cursor_.rank < size_; ++cursor_.rank, cursor_.line = 0) {
    if (cursor_.rank == me_) continue;
    WordLine* line = lines(cursor_.rank, sequence);
    std::byte* into = gathered_.data() + static_cast<size_t>(cursor_.rank) * kGatheredBytes;
    for (; cursor_.line < count; ++cursor_.line) {
      const std::atomic<uint64_t>& word = line[cursor_.line].word;
      if (word.load(kAcquire) != expected) {
        const Step step = await_word(cursor_.rank, word, sequence);
        const bool cut = step == Step::kFailed && cursor_.line > 0;
        if (step != Step::kDone && !cut) return step;
        if (cut || word.load(kAcquire) != expected) {
          operation.stage |= cut ? kCutLines : kDiffers;
          cursor_ = Cursor{};
          return Step::kMoved;
        }
      }
      // Whole lines, also the last: `gathered_` has room, and a length known here costs no call.
      if (count > 1) memcpy(into + cursor_.line * kLineBytes, line[cursor_.line].data, kLineBytes);
    }
  }
  return Step::kDone;
}

SharedMemoryCommunicator::Step SharedMemoryCommunicator::small_allreduce(Operation& operation) {
  const Step step = await_lines(operation);
  if (step != Step::kDone) return step;
  const bool one_line = operation.result.bytes() <= kLineBytes;
  auto* result = static_cast<std::byte*>(operation.result.data);
  for (int k = 0; k < size_; ++k) {
    const std::byte* from = one_line ? lines(k, operation.sequence)[0].data
                                     : gathered_.data() + static_cast<size_t>(k) * kGatheredBytes;
    sources_[static_cast<size_t>(k)] = k == me_ ? result : from;
  }
  fault_point("collective_sum");
  reduce(operation.result.type, operation.reduction, sources_, std::span(&result, 1),
         operation.result.count);
  return Step::kDone;
}

// A slice of all tensors is summed in rank order and stored into all of them: this rank's, unless
// it handed it over, and the partner's, if that did.
SharedMemoryCommunicator::Step SharedMemoryCommunicator::arena_allreduce(Operation& operation) {
  for (; cursor_.slices < 2; ++cursor_.slices, cursor_.at = 0) {
    const int owner = cursor_.slices == 0 ? me_ : partner_;
    if (owner >= size_) break;
    const bool handed_over = entry(owner, operation.sequence).handed_over;
    if (handed_over == (owner == me_)) continue;
    const Slice slice = slice_of(operation.result.count, owner, size_, operation.result.type);
    if (slice.begin + cursor_.at >= slice.end) continue;
    if (!sum_block(operation, slice)) return Step::kFailed;
    if (slice.begin + cursor_.at < slice.end) return Step::kMoved;
  }
  return Step::kDone;
}

// False: it cannot complete any more, since who died has not done its part.
bool SharedMemoryCommunicator::sum_block(const Operation& operation, const Slice& slice) {
  const DataType type = operation.result.type;
  const size_t begin = slice.begin + cursor_.at;
  const size_t count = std::min(slice.end - begin, block_bytes(size_) / size_of(type));
  for (int k = 0; k < size_; ++k) {
    if (closed_ && is_dead(k) && words(k).done.load(kAcquire) < operation.sequence) return false;
    const OperationEntry said = entry(k, operation.sequence);
    std::byte* tensor = arena_.at(k, {said.segment, said.offset}) + begin * size_of(type);
    sources_[static_cast<size_t>(k)] = tensor;
    destinations_[static_cast<size_t>(k)] = tensor;
  }
  fault_point("collective_slice");
  reduce(type, operation.reduction, sources_, destinations_, count);
  fault_point("collective_slice");
  cursor_.at += count;
  return true;
}

// Chunk by chunk through everybody's staging: each rank brings what the others sum, sums its slice
// where it lies (its own part straight in its tensor) and takes the others' slices. A slot is used
// again when everybody has summed it and this rank has taken it.
SharedMemoryCommunicator::Step SharedMemoryCommunicator::staged_allreduce(Operation& operation) {
  const size_t bytes = chunk_bytes(size_);
  const size_t each = bytes / size_of(operation.result.type);
  Cursor& c = cursor_;
  c.chunks = (operation.result.count + each - 1) / each;
  bool moved = false;
  if (c.brought < c.chunks && c.brought < c.taken + staging_slots(bytes)) {
    copy_chunk(operation, c.brought, true);
    publish(mine().brought, chunks_before_ + ++c.brought);
    moved = true;
  }
  if (c.summed < c.brought) {
    const Step step = await_counters(&CommunicatorWords::brought, chunks_before_ + c.summed + 1);
    if (step == Step::kFailed) return step;
    if (step == Step::kDone) {
      sum_chunk(operation, c.summed);
      publish(mine().summed, chunks_before_ + ++c.summed);
      moved = true;
    }
  }
  if (c.taken < c.summed) {
    const Step step = await_counters(&CommunicatorWords::summed, chunks_before_ + c.taken + 1);
    if (step == Step::kFailed) return step;
    if (step == Step::kDone) {
      copy_chunk(operation, c.taken, false);
      ++c.taken;
      moved = true;
    }
  }
  if (c.taken < c.chunks) return moved ? Step::kMoved : Step::kWait;
  chunks_before_ += c.chunks;
  return Step::kDone;
}

void SharedMemoryCommunicator::sum_chunk(const Operation& operation, uint64_t chunk) {
  const DataType type = operation.result.type;
  const Slice range = chunk_of(chunk, operation.result.count, size_, type);
  const Slice slice = slice_of(range.size(), me_, size_, type);
  if (slice.size() == 0) return;
  for (int k = 0; k < size_; ++k) {
    std::byte* at = k == me_ ? static_cast<std::byte*>(operation.result.data) +
                                   (range.begin + slice.begin) * size_of(type)
                             : staging(k, chunk, chunk_bytes(size_)) + slice.begin * size_of(type);
    sources_[static_cast<size_t>(k)] = at;
    destinations_[static_cast<size_t>(k)] = at;
  }
  fault_point("collective_sum");
  reduce(type, operation.reduction, sources_, destinations_, slice.size());
  fault_point("collective_sum");
}

// All of a chunk but the own slice, into staging or back.
void SharedMemoryCommunicator::copy_chunk(const Operation& operation, uint64_t chunk, bool bring) {
  const DataType type = operation.result.type;
  const Slice range = chunk_of(chunk, operation.result.count, size_, type);
  const Slice own = slice_of(range.size(), me_, size_, type);
  std::byte* tensor = static_cast<std::byte*>(operation.result.data) + range.begin * size_of(type);
  std::byte* staged = staging(me_, chunk, chunk_bytes(size_));
  fault_point("collective_stage");
  for (const Slice part : {Slice{0, own.begin}, Slice{own.end, range.size()}}) {
    const size_t at = part.begin * size_of(type), bytes = part.size() * size_of(type);
    if (bytes == 0) continue;
    if (bring)
      memcpy(staged + at, tensor + at, bytes);
    else
      memcpy(tensor + at, staged + at, bytes);
  }
}

}  // namespace hvd
