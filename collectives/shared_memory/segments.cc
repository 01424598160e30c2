// Adding a segment: ask, map, fault in the own piece, meet, fault in the peers'.
#include <algorithm>

#include "collectives/shared_memory/shared_memory_communicator.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

constexpr uint64_t kPopulateBytes = 1 << 20;  // in one call of progress()
// Other ranks fault in theirs at the same time, out of the same memory: so we look again.
constexpr uint64_t kLookEvery = 64 << 20;

}  // namespace

// Before entering. kDone also when it cannot be done: the entry says so, and everybody refuses.
SharedMemoryCommunicator::Step SharedMemoryCommunicator::prepare_segment(Operation& operation) {
  try {
    if ((operation.stage & kRequested) == 0) {
      fault_point("segment_request");
      peers_.request_segment(operation.segment, operation.segment_bytes);
      operation.stage |= kRequested;
      populated_ = 0;
    }
    if (new_segment_ == nullptr) {
      std::optional<std::vector<UniqueFd>> pieces = peers_.take_segment(operation.segment);
      if (!pieces) return Step::kWait;
      new_segment_ = std::make_shared<Segment>(operation.segment, std::move(*pieces),
                                               operation.segment_bytes, me_, 0);
    }
    const uint64_t wanted = std::min(operation.populate_bytes, operation.segment_bytes);
    if (populated_ < wanted) {
      if (populated_ % kLookEvery == 0) Segment::check_headroom(wanted - populated_);
      new_segment_->populate(me_, populated_, std::min(kPopulateBytes, wanted - populated_));
      populated_ += kPopulateBytes;
      if (populated_ < wanted) return Step::kMoved;
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) throw;  // our own fault is nobody's refusal
    if (new_segment_) new_segment_->give_back(0);     // a rank that did not ask would keep it there
    new_segment_.reset();
    unable_ = error.what();
    return Step::kDone;
  }
  // Peers may use it from the moment this rank has entered.
  arena_.add(new_segment_);
  new_segment_.reset();
  return Step::kDone;
}

// Everybody has entered, so every owner has its pages. Resolved when all have faulted in this
// rank's: its user may let go at once, and pages that came later would stay.
SharedMemoryCommunicator::Step SharedMemoryCommunicator::meet_segment(Operation& operation) {
  operation.stage |= kHasReaders;
  const uint64_t wanted = std::min(operation.populate_bytes, operation.segment_bytes);
  for (; cursor_.rank < size_; ++cursor_.rank, cursor_.at = 0) {
    if (cursor_.rank == me_ || cursor_.at >= wanted) continue;
    const uint64_t part = std::min(kPopulateBytes, wanted - cursor_.at);
    try {
      arena_.segment(operation.segment)->populate(cursor_.rank, cursor_.at, part);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInternal) throw;
      // Only slower: the first access will fault the page in.
    }
    cursor_.at += part;
    return Step::kMoved;
  }
  return Step::kDone;
}

}  // namespace hvd
