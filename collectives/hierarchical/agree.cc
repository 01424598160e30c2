// How all ranks of all hosts come to know whether they called the same, and what rides along.
#include <string.h>

#include <algorithm>

#include "collectives/describe.h"
#include "collectives/hierarchical/hierarchical_communicator.h"
#include "collectives/reduce.h"
#include "collectives/schedule.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

constexpr auto kRelease = std::memory_order_release;

}  // namespace

// --- Entering.

bool HierarchicalCommunicator::rides(const Operation& operation) const {
  const size_t bytes = operation.result.bytes();
  return operation.kind == OperationKind::kAllreduce   ? host_sums_ride(bytes)
         : operation.kind == OperationKind::kBroadcast ? broadcast_rides(bytes)
                                                       : false;
}

TensorPlace HierarchicalCommunicator::place_of(Operation& operation) {
  if (operation.kind == OperationKind::kSegment && !new_segment_.unable().empty())
    return TensorPlace::kUnable;
  if (operation.kind != OperationKind::kAllreduce && operation.kind != OperationKind::kBroadcast)
    return TensorPlace::kNone;
  const size_t bytes = operation.result.bytes();
  const std::optional<ArenaAddress> address =
      bytes == 0 ? std::nullopt : arena_.find(operation.result.data, bytes);
  if (!address) return TensorPlace::kPrivate;
  operation.address = *address;
  return TensorPlace::kArena;
}

// What rides and lies in private memory goes beside the entry, into the input area: nobody reads
// there any more what an earlier operation left.
void HierarchicalCommunicator::write_entry(Operation& operation) {
  const TensorPlace place = place_of(operation);
  const size_t bytes = operation.result.bytes();
  const bool has_data = operation.kind == OperationKind::kAllreduce || operation.root == rank();
  if (place == TensorPlace::kPrivate && has_data && bytes != 0) {
    HVD_CHECK(areas_.input.bytes != 0, "this communicator takes only memory of the arena");
    fault_point("collective_payload");
    if (rides(operation) && !leads()) memcpy(input_area(me_), operation.result.data, bytes);
  }
  HostEntry& said = mine().entries[operation.sequence % 2];
  said.hash = operation.hash;
  said.count = operation.input.count;
  said.segment = operation.address.segment;
  said.offset = operation.address.offset;
  said.place = place;
  fault_point("collective_entry");
  publish(said.word, stamp(operation.sequence));
}

// --- The leader's part.

// A rank that enters no more breaks the epoch for whoever needs it: by shutdown(), of which `left`
// is the last word, or because it let go of what this communicator is for.
void HierarchicalCommunicator::notice_departure(int local_rank, uint64_t sequence) {
  const uint64_t closed = words(local_rank).closed.load(std::memory_order_acquire);
  if (departure_noticed_ || closed == 0 || closed > sequence) return;
  if (name_.empty() && block_.rank(local_rank).left.load(std::memory_order_acquire) == 0) return;
  if (block_.trouble.load(std::memory_order_acquire) != 0) return;
  departure_noticed_ = true;
  const int gone = world_rank(local_rank);
  raise_trouble(peers_, TroubleReason::kLeft, departure_text(peers_, gone, name_),
                std::span(&gone, 1));
}

HierarchicalCommunicator::Step HierarchicalCommunicator::await_entries(Operation& operation) {
  for (; next_rank_ < local_size_; ++next_rank_) {
    const HostEntry& said = entry(next_rank_, operation.sequence);
    if (!has_said(next_rank_, said.word, stamp(operation.sequence))) {
      notice_departure(next_rank_, operation.sequence);
      return Step::kWait;
    }
    differs_ |= said.hash != operation.hash || said.place == TensorPlace::kUnable;
  }
  begin_exchange(operation, differs_);
  mine().heard.store(stamp(operation.sequence), kRelease);
  stage_ = Stage::kExchange;
  return advance(operation);
}

Rider HierarchicalCommunicator::rider_of(const Operation& operation) const {
  if (operation.kind == OperationKind::kAllgather) return Rider::kCounts;
  if (!rides(operation)) return Rider::kNobody;
  return operation.kind == OperationKind::kAllreduce ? Rider::kTensor : Rider::kRooted;
}

FrameHeader HierarchicalCommunicator::header_of(const Operation& operation) const {
  return {.epoch = peers_.world().epoch,
          .sequence = operation.sequence,
          .hash = operation.hash,
          .from = static_cast<uint32_t>(rank())};
}

// Everybody of this host has entered, and so is done with what the areas held.
void HierarchicalCommunicator::begin_exchange(Operation& operation, bool differs) {
  const Rider rider = rider_of(operation);
  if (rider == Rider::kCounts) {
    exchange_.counts().assign(static_cast<size_t>(size()), kUnknownCount);
    for (int k = 0; k < local_size_; ++k)
      exchange_.counts()[static_cast<size_t>(world_rank(k))] = entry(k, operation.sequence).count;
  }
  if (rides(operation) && !differs) fill_result_area(operation);
  exchange_.begin({.rider = rider,
                   .header = header_of(operation),
                   .differs = differs,
                   .data = output_area(me_),
                   .result = output_area(me_),
                   .count = operation.result.count,
                   .type = operation.result.type,
                   .reduction = operation.reduction,
                   .inputs = size(),
                   .are_sums = true,
                   .root = map_.host_of(operation.root)});
}

// With the sum of this host, or what its root sends.
void HierarchicalCommunicator::fill_result_area(const Operation& operation) {
  const size_t bytes = operation.result.bytes();
  if (bytes == 0) return;
  std::byte* result = output_area(me_);
  for (int k = 0; k < local_size_; ++k) {
    std::byte* tensor = k == me_        ? static_cast<std::byte*>(operation.result.data)
                        : is_private(k) ? input_area(k)
                                        : tensor_of(k);
    sources_[static_cast<size_t>(k)] = tensor;
    if (operation.kind == OperationKind::kBroadcast && world_rank(k) == operation.root)
      memcpy(result, tensor, bytes);
  }
  fault_point("collective_sum");
  if (operation.kind == OperationKind::kAllreduce)
    reduce_host(operation.result.type, operation.reduction,
                {.inputs = size(), .last = map_.hosts() == 1}, sources_, result,
                operation.result.count);
}

HierarchicalCommunicator::Step HierarchicalCommunicator::leave_exchange(Operation& operation) {
  const size_t before = exchange_.steps_over();
  const Step step = exchange_.advance(lanes_.front().links);
  if (exchange_.steps_over() != before)
    mine().heard.store(stamp(operation.sequence, 1 + exchange_.steps_over()), kRelease);
  if (step != Step::kDone) return step;
  const bool agreed = !exchange_.differs();
  if (agreed && exchange_.rider() == Rider::kCounts)
    memcpy(counts_area(me_), exchange_.counts().data(),
           exchange_.counts().size() * sizeof(uint64_t));
  const Verdict verdict = !agreed           ? Verdict::kDiffers
                          : exchange_.far() ? Verdict::kAgreedFar
                                            : Verdict::kAgreed;
  publish(mine().verdict, stamp(operation.sequence, static_cast<uint64_t>(verdict)));
  return go_on(operation, verdict);
}

// --- What comes of it.

// The leader cannot have gone on to the next operation, which this rank has not entered.
HierarchicalCommunicator::Step HierarchicalCommunicator::await_verdict(Operation& operation) {
  const uint64_t awaited =
      static_cast<uint64_t>(stage_ == Stage::kTold ? Verdict::kTold : Verdict::kAgreed);
  const std::atomic<uint64_t>& word = words(0).verdict;
  if (!has_said(0, word, stamp(operation.sequence, awaited))) {
    notice_departure(0, operation.sequence);
    return Step::kWait;
  }
  return go_on(operation, static_cast<Verdict>(progress_of(word.load(std::memory_order_acquire))));
}

HierarchicalCommunicator::Step HierarchicalCommunicator::go_on(Operation& operation,
                                                               Verdict verdict) {
  next_rank_ = 0;
  switch (verdict) {
    case Verdict::kAgreed:
    case Verdict::kAgreedFar:
      return begin_flow(operation, ring_chunk_bytes(verdict == Verdict::kAgreedFar));
    case Verdict::kDiffers:
      tell(operation);
      stage_ = leads() ? Stage::kTell : Stage::kTold;
      return Step::kMoved;
    case Verdict::kTold:
      break;
  }
  return refuse(operation);
}

void HierarchicalCommunicator::tell(const Operation& operation) {
  const std::string unable = new_segment_.take_unable();
  copy_text(mine().text, sizeof mine().text, unable.empty() ? describe(operation) : unable);
  fault_point("collective_told");
  publish(mine().told, stamp(operation.sequence));
}

HierarchicalCommunicator::Step HierarchicalCommunicator::await_tellers(Operation& operation) {
  for (; next_rank_ < local_size_; ++next_rank_)
    if (!has_said(next_rank_, words(next_rank_).told, stamp(operation.sequence)))
      return Step::kWait;
  std::vector<Side> sides;
  for (int k = 0; k < local_size_; ++k) {
    const HostEntry& said = entry(k, operation.sequence);
    sides.push_back({.rank = world_rank(k),
                     .hash = said.hash,
                     .unable = said.place == TensorPlace::kUnable,
                     .text = words(k).text});
  }
  exchange_.sides() = merge_sides(sides, {});
  exchange_.begin({.rider = Rider::kSides, .header = header_of(operation)});
  stage_ = Stage::kTellExchange;
  return Step::kMoved;
}

HierarchicalCommunicator::Step HierarchicalCommunicator::leave_tell_exchange(Operation& operation) {
  const Step step = exchange_.advance(lanes_.front().links);
  if (step != Step::kDone) return step;
  const std::vector<std::byte> bytes = encode_sides(exchange_.sides());
  memcpy(mine().sides, bytes.data(), bytes.size());
  mine().sides_bytes = bytes.size();
  publish(mine().verdict, stamp(operation.sequence, static_cast<uint64_t>(Verdict::kTold)));
  return go_on(operation, Verdict::kTold);
}

HierarchicalCommunicator::Step HierarchicalCommunicator::refuse(Operation& operation) {
  const auto sides = decode_sides({words(0).sides, words(0).sides_bytes});
  HVD_CHECK(sides.has_value(), "the leader encoded what all have told");
  set_refusal(operation, *sides);
  NewSegment::undo(operation, arena_);
  finish(Outcome::kRefused);
  return Step::kDone;
}

}  // namespace hvd
