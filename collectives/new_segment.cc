#include "collectives/new_segment.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

constexpr uint64_t kPopulateBytes = 2 << 20;  // in one call: a huge page, of most machines
// Other ranks fault in theirs at the same time, out of the same memory: so we look again.
constexpr uint64_t kLookEvery = 64 << 20;

}  // namespace

NewSegment::Step NewSegment::prepare(const Operation& operation, Peers& peers, Arena& arena) {
  try {
    const Step step = prepare_or_throw(operation, peers);
    if (step != Step::kDone) return step;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) throw;  // our own fault is nobody's refusal
    if (segment_) segment_->give_back(0);             // a rank that did not ask would keep it there
    segment_.reset();
    unable_ = error.what();
  }
  requested_ = false;
  // Peers may use it from the moment this rank has entered.
  if (segment_) arena.add(std::move(segment_));
  segment_.reset();
  return Step::kDone;
}

NewSegment::Step NewSegment::prepare_or_throw(const Operation& operation, Peers& peers) {
  if (!requested_) {
    fault_point("segment_request");
    peers.request_segment(operation.segment, operation.segment_bytes);
    requested_ = true;
    populated_ = 0;
  }
  const int me = peers.world().local_rank;
  if (segment_ == nullptr) {
    std::optional<std::vector<UniqueFd>> pieces = peers.take_segment(operation.segment);
    if (!pieces) return Step::kWait;
    segment_ = std::make_shared<Segment>(operation.segment, std::move(*pieces),
                                         operation.segment_bytes, me, 0);
  }
  const uint64_t wanted = std::min(operation.populate_bytes, operation.segment_bytes);
  if (populated_ >= wanted) return Step::kDone;
  if (populated_ % kLookEvery == 0) peers.check_headroom(wanted - populated_);
  segment_->populate(me, populated_, std::min(kPopulateBytes, wanted - populated_));
  populated_ += kPopulateBytes;
  return populated_ < wanted ? Step::kMoved : Step::kDone;
}

bool NewSegment::meet(const Operation& operation, Arena& arena, int local_rank, int local_size,
                      int* rank, uint64_t* at) {
  const uint64_t wanted = std::min(operation.populate_bytes, operation.segment_bytes);
  for (; *rank < local_size; ++*rank, *at = 0) {
    if (*rank == local_rank || *at >= wanted) continue;
    const uint64_t part = std::min(kPopulateBytes, wanted - *at);
    try {
      arena.segment(operation.segment)->populate(*rank, *at, part);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInternal) throw;
      // Only slower: the first access will fault the page in.
    }
    *at += part;
    return false;
  }
  return true;
}

void NewSegment::undo(const Operation& operation, Arena& arena) {
  if (operation.kind != OperationKind::kSegment || !arena.has(operation.segment)) return;
  arena.segment(operation.segment)->give_back(0);
  arena.remove(operation.segment);
}

}  // namespace hvd
