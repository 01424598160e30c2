// Broadcast and allgather: what lies in the arena or beside an entry is read where it is, the rest
// comes through staging.
#include <string.h>

#include <algorithm>
#include <exception>

#include "collectives/gather_room.h"
#include "collectives/shared_memory/shared_memory_communicator.h"
#include "runtime/base/fault_point.h"

namespace hvd {

SharedMemoryCommunicator::Step SharedMemoryCommunicator::broadcast(Operation& operation) {
  if ((operation.stage & kStagedData) != 0) return staged_broadcast(operation);
  const OperationEntry said = entry(operation.root, operation.sequence);
  if (me_ == operation.root) {
    if (said.place == Place::kArena) operation.stage |= kHasReaders;
    return Step::kDone;
  }
  const size_t bytes = operation.result.bytes();
  const std::byte* from = said.place == Place::kArena
                              ? arena_.at(operation.root, {said.segment, said.offset})
                              : words(operation.root).payload[operation.sequence % kOperationSlots];
  const size_t part = std::min(kCopyBytes, bytes - cursor_.at);
  fault_point("collective_copy");
  if (part != 0)
    memcpy(static_cast<std::byte*>(operation.result.data) + cursor_.at, from + cursor_.at, part);
  cursor_.at += part;
  return cursor_.at < bytes ? Step::kMoved : Step::kDone;
}

// The root brings chunk after chunk, never more than the slots ahead of the slowest reader.
SharedMemoryCommunicator::Step SharedMemoryCommunicator::staged_broadcast(Operation& operation) {
  const size_t bytes = operation.result.bytes();
  auto* data = static_cast<std::byte*>(operation.result.data);
  Cursor& c = cursor_;
  c.chunks = (bytes + kCopyBytes - 1) / kCopyBytes;
  const size_t at = c.taken * kCopyBytes;
  const size_t part = std::min(kCopyBytes, bytes - at);
  std::byte* staged = staging(operation.root, c.taken, kCopyBytes);
  if (me_ == operation.root) {
    if (c.taken >= kCopySlots) {
      const uint64_t free = chunks_before_ + c.taken + 1 - kCopySlots;
      const Step step = await_counters(&CommunicatorWords::summed, free);
      if (step != Step::kDone) return step;
    }
    fault_point("collective_stage");
    memcpy(staged, data + at, part);
    ++c.taken;
    mine().summed.store(chunks_before_ + c.taken, std::memory_order_release);
    publish(mine().brought, chunks_before_ + c.taken);
  } else {
    const std::atomic<uint64_t>& brought = words(operation.root).brought;
    if (brought.load(std::memory_order_acquire) < chunks_before_ + c.taken + 1) {
      behind_ = {&CommunicatorWords::brought, chunks_before_ + c.taken + 1, operation.root};
      if (!closed_ || !is_gone(operation.root)) return Step::kWait;
      if (brought.load(std::memory_order_acquire) < chunks_before_ + c.taken + 1)
        return Step::kFailed;
    }
    fault_point("collective_copy");
    memcpy(data + at, staged, part);
    publish(mine().summed, chunks_before_ + ++c.taken);
  }
  if (c.taken < c.chunks) return Step::kMoved;
  chunks_before_ += c.chunks;
  return Step::kDone;
}

// Round r: everybody whose part is staged brings its chunk r, then everybody takes chunk r of all
// in rank order; what need not be staged is taken whole in the first round.
SharedMemoryCommunicator::Step SharedMemoryCommunicator::allgather(Operation& operation) {
  Cursor& c = cursor_;
  if (c.chunks == 0) prepare_allgather(operation);
  if (!c.has_room) {
    // A rank that has no room goes on lending its part to the others.
    const GatherRoom room = make_gather_room(operation, counts_);
    if (!room.is_made) return Step::kMoved;
    if (room.is_refused) operation.stage |= kRefusedHere;
    c.result = room.at;
    c.has_room = true;
  }
  const bool staged = (operation.stage & kStagedData) != 0;
  bool moved = false;
  if (staged && c.brought < c.chunks) {
    const uint64_t used = c.brought < kCopySlots ? 0 : c.brought + 1 - kCopySlots;
    const Step step =
        await_counters(&CommunicatorWords::summed, used == 0 ? 0 : chunks_before_ + used);
    if (step == Step::kFailed) return step;
    if (step == Step::kDone) {
      bring_part(operation, c.brought);
      publish(mine().brought, chunks_before_ + ++c.brought);
      moved = true;
    }
  }
  if (staged) {
    const Step step = await_counters(&CommunicatorWords::brought, chunks_before_ + c.taken + 1);
    if (step == Step::kFailed) return step;
    if (step == Step::kWait) return moved ? Step::kMoved : Step::kWait;
  }
  if (!take_piece(operation)) return Step::kMoved;
  ++c.taken;
  if (staged) publish(mine().summed, chunks_before_ + c.taken);
  if (c.taken < c.chunks) return Step::kMoved;
  if (staged) chunks_before_ += c.chunks;
  return Step::kDone;
}

// All counts are known: how many rounds, and where each part goes.
void SharedMemoryCommunicator::prepare_allgather(Operation& operation) {
  const size_t element = size_of(operation.result.type);
  cursor_.chunks = 1;
  size_t start = 0;
  for (int k = 0; k < size_; ++k) {
    const OperationEntry said = entry(k, operation.sequence);
    const auto index = static_cast<size_t>(k);
    counts_[index] = said.count;
    starts_[index] = start;
    start += said.count * element;
    if (said.place == Place::kStaged)
      cursor_.chunks =
          std::max<uint64_t>(cursor_.chunks, (said.count * element + kCopyBytes - 1) / kCopyBytes);
    if (k == me_ && said.place == Place::kArena) operation.stage |= kHasReaders;
  }
}

void SharedMemoryCommunicator::bring_part(const Operation& operation, uint64_t round) {
  const size_t bytes = operation.input.bytes(), at = round * kCopyBytes;
  if (at >= bytes || entry(me_, operation.sequence).place != Place::kStaged) return;
  fault_point("collective_stage");
  memcpy(staging(me_, round, kCopyBytes), static_cast<const std::byte*>(operation.input.data) + at,
         std::min(kCopyBytes, bytes - at));
}

// Copies up to kCopyBytes of the round's data; true when the round is over.
bool SharedMemoryCommunicator::take_piece(Operation& operation) {
  Cursor& c = cursor_;
  for (; c.rank < size_; ++c.rank, c.at = 0) {
    const OperationEntry said = entry(c.rank, operation.sequence);
    const size_t bytes = said.count * size_of(operation.result.type);
    const bool chunked = said.place == Place::kStaged && c.rank != me_;
    const size_t begin = chunked ? c.taken * kCopyBytes : 0;
    const size_t end = chunked ? std::min(bytes, begin + kCopyBytes) : (c.taken == 0 ? bytes : 0);
    if (begin + c.at >= end || cursor_.result == nullptr) continue;
    const size_t part = std::min(kCopyBytes, end - begin - c.at);
    fault_point("collective_copy");
    memcpy(c.result + starts_[static_cast<size_t>(c.rank)] + begin + c.at,
           part_of(operation, said) + c.at, part);
    c.at += part;
    return false;
  }
  c.rank = 0;
  return true;
}

// Where this round's data of rank `cursor_.rank` lie.
const std::byte* SharedMemoryCommunicator::part_of(const Operation& operation,
                                                   const OperationEntry& said) const {
  if (cursor_.rank == me_) return static_cast<const std::byte*>(operation.input.data);
  if (said.place == Place::kArena) return arena_.at(cursor_.rank, {said.segment, said.offset});
  if (said.place == Place::kStaged) return staging(cursor_.rank, cursor_.taken, kCopyBytes);
  return words(cursor_.rank).payload[operation.sequence % kOperationSlots];
}

}  // namespace hvd
