// What is left of a long operation when all have agreed.
//
// Each slice of a tensor has one leader on every host, and these form a ring. On its host the
// leader alone reads that slice of the others' tensors and writes their results, so slices need
// nothing of each other. For its slice a leader does three things side by side:
//
//   in:   sums what its host's ranks have, block by block, in rank order, into its own tensor;
//   ring: sends from there and sums into there (ring.h), as far as the blocks have come;
//   out:  hands out what is whole: into the tensors of ranks whose memory it sees.
//
// Ranks whose memory it does not see *bring* blocks to their input area, where leaders read them,
// and *take* results from the leaders' output areas, round by round: a block of every slice a
// round. A round's place is used again when all who read it have said so.
//
// Why nobody waits in a circle: what comes in, and what went round, lies in the leader's own
// tensor, which has room for all of it. So bringing waits for summing, and summing for bringing,
// round after round, and for nothing else; a ring waits for blocks of its own hosts and for the
// other leaders of its slice; giving waits for its ring and for takers; takers wait for all givers
// of their host. No step waits for a later one.
//
// A broadcast is such a ring of which only the root's slice has anything, and nothing is summed; an
// allgather one in which the leader's own part is what comes in.
#include <string.h>

#include <algorithm>
#include <numeric>

#include "collectives/gather_room.h"
#include "collectives/hierarchical/hierarchical_communicator.h"
#include "collectives/reduce.h"
#include "collectives/schedule.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

constexpr size_t kCopyBytes = 128 * 1024;  // in one go: still in the cache when it is sent

constexpr uint64_t kAllRounds = 0xffffffff;

uint64_t rounds(size_t bytes, size_t block_bytes) {
  return bytes == 0 ? 0 : (bytes + block_bytes - 1) / block_bytes;
}

}  // namespace

bool HierarchicalCommunicator::is_private(int rank) const {
  return entry(rank, under_way().sequence).place == TensorPlace::kPrivate;
}

// Everybody but who has them: this rank leads the slice, a root sent them.
bool HierarchicalCommunicator::takes_results(int rank) const {
  if (under_way().kind == OperationKind::kAllgather) return true;
  const bool is_root =
      under_way().kind == OperationKind::kBroadcast && world_rank(rank) == under_way().root;
  return is_private(rank) && !is_root;
}

bool HierarchicalCommunicator::gets_pushed(int rank) const {
  return rank != me_ && entry(rank, under_way().sequence).place == TensorPlace::kArena &&
         !(under_way().kind == OperationKind::kBroadcast && world_rank(rank) == under_way().root);
}

HierarchicalCommunicator::Step HierarchicalCommunicator::begin_flow(Operation& operation,
                                                                    size_t chunk_bytes) {
  flow_ = Flow{.chunk_bytes = chunk_bytes};
  const Reduction& reduction = operation.reduction;
  const bool alone = size() == 1 && reduction.prescale == 1 && reduction.postscale == 1;
  if (operation.kind == OperationKind::kBarrier || rides(operation) ||
      (alone && operation.kind == OperationKind::kAllreduce)) {
    if (rides(operation) && !alone) copy_result(operation);
    finish(Outcome::kComplete);
    return Step::kDone;
  }
  const bool gathers = operation.kind == OperationKind::kAllgather;
  if (!gathers) flow_.data = static_cast<std::byte*>(operation.result.data);
  if (!gathers && operation.kind != OperationKind::kSegment) plan(operation);
  stage_ = gathers ? Stage::kRoom : Stage::kFlow;
  return advance(operation);
}

void HierarchicalCommunicator::copy_result(Operation& operation) {
  const size_t bytes = operation.result.bytes();
  const bool has_it = operation.kind == OperationKind::kBroadcast && operation.root == rank();
  fault_point("collective_copy");
  if (!has_it && bytes != 0) memcpy(operation.result.data, output_area(0), bytes);
}

void HierarchicalCommunicator::plan(Operation& operation) {
  const bool sums = operation.kind == OperationKind::kAllreduce;
  const bool gathers = operation.kind == OperationKind::kAllgather;
  for (int slice = 0; slice < map_.slices(); ++slice) {
    LanePlan& plan = plans_[static_cast<size_t>(slice)];
    plan = sums ? plan_allreduce(map_, host_, slice, operation.result.count, operation.result.type,
                                 flow_.chunk_bytes)
           : gathers ? plan_allgather(map_, host_, slice, counts_, size_of(operation.result.type))
                     : plan_broadcast(map_, host_, slice, operation.root, operation.result.bytes());
    const bool leads_it = leader_of(slice) == me_;
    const uint64_t in = sums ? input_rounds(plan, areas_.input.block_bytes) : 0;
    const uint64_t out = rounds(plan.results.bytes(), areas_.output.block_bytes);
    uint64_t& in_most = leads_it ? flow_.sum_rounds : flow_.bring_rounds;
    uint64_t& out_most = leads_it ? flow_.give_rounds : flow_.take_rounds;
    in_most = std::max(in_most, in);
    out_most = std::max(out_most, out);
  }
  bool gives = false;
  for (int k = 0; k < local_size_; ++k) {
    if (k == me_) continue;
    flow_.others_bring |= sums && is_private(k);
    gives |= takes_results(k);
    flow_.pushes |= gets_pushed(k);
  }
  if (!is_private(me_)) flow_.bring_rounds = 0;
  if (!takes_results(me_)) flow_.take_rounds = 0;
  if (!gives) flow_.give_rounds = 0;
  // Who waits for everybody waits for those who have nothing to sum, too.
  if (flow_.others_bring && flow_.sum_rounds == 0)
    publish(mine().summed, stamp(operation.sequence, kAllRounds));
  for (Lane& lane : lanes_) {
    lane.begun = false;
    lane.own_ready = lane.rest_ready = lane.pushed = 0;
  }
}

// A rank that has none hands the others' parts on all the same.
HierarchicalCommunicator::Step HierarchicalCommunicator::make_room(Operation& operation) {
  counts_.resize(static_cast<size_t>(size()));
  memcpy(counts_.data(), counts_area(0), counts_.size() * sizeof counts_[0]);
  const GatherRoom room = make_gather_room(operation, counts_);
  if (!room.is_made) return Step::kMoved;
  flow_.data = room.at;
  flow_.refused = room.is_refused;
  const size_t bytes =
      size_of(operation.result.type) * std::accumulate(counts_.begin(), counts_.end(), uint64_t{0});
  if (room.is_refused && bytes != 0) {
    nowhere_ = room_to_hand_on(bytes);
    flow_.data = nowhere_.get();
    if (flow_.data == nullptr)
      lanes_.front().links.break_off(TroubleReason::kEngineError,
                                     "rank " + std::to_string(rank()) + ": " + operation.error,
                                     rank());
  }
  if (flow_.data != nullptr || bytes == 0) plan(operation);
  stage_ = Stage::kFlow;
  return Step::kMoved;
}

HierarchicalCommunicator::Step HierarchicalCommunicator::flow(Operation& operation) {
  bool moved = false, over = true;
  if (operation.kind == OperationKind::kSegment) {
    const Step step = meet_segment(operation);
    if (step != Step::kDone) return step;
  } else {
    if (is_broken_off()) return Step::kWait;
    const bool sums = operation.kind == OperationKind::kAllreduce;
    moved |= bring(operation);
    moved |= take_in(operation);
    for (Lane& lane : lanes_) {
      if (plan_of(lane).results.bytes() == 0) continue;
      moved |= !sums && copy_own_part(operation, lane);
      moved |= map_.hosts() > 1 && turn(operation, lane);
      moved |= flow_.pushes && push(lane);
      over &= is_over(lane);
    }
    moved |= give(operation);
    moved |= take(operation);
    over &= flow_.brought == flow_.bring_rounds && flow_.summed == flow_.sum_rounds &&
            flow_.given == flow_.give_rounds && flow_.taken == flow_.take_rounds;
  }
  if (!over || is_broken_off()) return moved ? Step::kMoved : Step::kWait;
  fault_point("collective_done");
  publish(mine().done, stamp(operation.sequence));
  next_rank_ = 0;
  stage_ = Stage::kSettle;
  return advance(operation);
}

HierarchicalCommunicator::Step HierarchicalCommunicator::meet_segment(Operation& operation) {
  if (local_size_ == 1) return Step::kDone;
  return NewSegment::meet(operation, arena_, me_, local_size_, &flow_.next_rank, &flow_.at)
             ? Step::kDone
             : Step::kMoved;
}

// --- In.

// A round: of every slice that others lead the next block, to where they read it.
bool HierarchicalCommunicator::bring(const Operation& operation) {
  if (flow_.brought == flow_.bring_rounds) return false;
  if (flow_.brought >= areas_.input.slots)
    for (int k = 0; k < local_size_; ++k)
      if (k != me_ && !has_said(k, words(k).summed,
                                stamp(operation.sequence, flow_.brought + 1 - areas_.input.slots)))
        return false;
  fault_point("collective_stage");
  const auto slices = static_cast<size_t>(map_.slices());
  std::byte* round =
      input_area(me_) + flow_.brought % areas_.input.slots * slices * areas_.input.block_bytes;
  for (size_t slice = 0; slice < slices; ++slice) {
    if (leader_of(static_cast<int>(slice)) == me_) continue;
    const LanePlan& plan = plans_[slice];
    const InputBlock block = input_block(plan, areas_.input.block_bytes, flow_.brought);
    std::byte* into = round + slice * areas_.input.block_bytes;
    (block.own ? plan.own : plan.rest)
        .each(block.begin, block.end, [&](const ByteRange& range, size_t at) {
          memcpy(into + (at - block.begin), flow_.data + range.begin, range.bytes());
        });
  }
  publish(mine().brought, stamp(operation.sequence, ++flow_.brought));
  return true;
}

// Where peers bring blocks, a round is read as soon as it is there: they wait for its place. Where
// all lies in the arena, not before the ring wants it, so that it is still in the cache.
bool HierarchicalCommunicator::input_is_wanted() const {
  if (flow_.others_bring || map_.hosts() == 1) return true;
  return std::ranges::any_of(lanes_, [&](const Lane& lane) {
    const LanePlan& plan = plan_of(lane);
    if (!lane.begun) return true;
    return (lane.own_ready < plan.own.bytes() &&
            lane.own_ready < lane.ring.own_sent() + areas_.input.block_bytes) ||
           (lane.rest_ready < plan.rest.bytes() &&
            lane.rest_ready < lane.ring.summed() + areas_.input.block_bytes);
  });
}

// A round: of every slice that this rank leads the next block, summed.
bool HierarchicalCommunicator::take_in(const Operation& operation) {
  if (flow_.summed == flow_.sum_rounds || !input_is_wanted()) return false;
  for (int k = 0; k < local_size_; ++k)
    if (k != me_ && is_private(k) &&
        !has_said(k, words(k).brought, stamp(operation.sequence, flow_.summed + 1)))
      return false;
  for (Lane& lane : lanes_) {
    const InputBlock block = input_block(plan_of(lane), areas_.input.block_bytes, flow_.summed);
    sum_block(operation, lane, block);
    (block.own ? lane.own_ready : lane.rest_ready) += block.end - block.begin;
  }
  const bool all = ++flow_.summed == flow_.sum_rounds;  // others may have more rounds
  if (flow_.others_bring)
    publish(mine().summed, stamp(operation.sequence, all ? kAllRounds : flow_.summed));
  return true;
}

void HierarchicalCommunicator::sum_block(const Operation& operation, Lane& lane,
                                         const InputBlock& block) {
  const LanePlan& plan = plan_of(lane);
  const size_t element = size_of(operation.result.type);
  const uint64_t slot = flow_.others_bring ? flow_.summed % areas_.input.slots : 0;
  const size_t brought =
      (slot * static_cast<uint64_t>(map_.slices()) + static_cast<uint64_t>(lane.slice)) *
      areas_.input.block_bytes;
  (block.own ? plan.own : plan.rest)
      .each(block.begin, block.end, [&](const ByteRange& range, size_t at) {
        for (int k = 0; k < local_size_; ++k)
          sources_[static_cast<size_t>(k)] = k == me_ ? flow_.data + range.begin
                                             : is_private(k)
                                                 ? input_area(k) + brought + (at - block.begin)
                                                 : tensor_of(k) + range.begin;
        fault_point("collective_sum");
        reduce_host(operation.result.type, operation.reduction,
                    {.inputs = size(), .last = map_.hosts() == 1}, sources_,
                    flow_.data + range.begin, range.bytes() / element);
      });
}

// What is not summed: a broadcast's root has it, of what is gathered it is this rank's input.
bool HierarchicalCommunicator::copy_own_part(const Operation& operation, Lane& lane) {
  const size_t bytes = plan_of(lane).own.bytes();
  if (lane.own_ready == bytes) return false;
  const size_t end = operation.kind == OperationKind::kBroadcast
                         ? bytes
                         : std::min(bytes, lane.own_ready + kCopyBytes);
  fault_point("collective_stage");
  if (operation.kind == OperationKind::kAllgather)
    plan_of(lane).own.each(lane.own_ready, end, [&](const ByteRange& range, size_t at) {
      memcpy(flow_.data + range.begin, static_cast<const std::byte*>(operation.input.data) + at,
             range.bytes());
    });
  lane.own_ready = end;
  return true;
}

// --- Ring.

void HierarchicalCommunicator::begin_ring(const Operation& operation, Lane& lane) {
  lane.begun = true;
  RingTask task;
  task.place = host_;
  task.places = map_.hosts();
  task.data = flow_.data;
  task.parts = plan_of(lane).parts;
  task.sums = operation.kind == OperationKind::kAllreduce;
  if (task.sums) task.chunk_bytes = flow_.chunk_bytes;
  task.spreads = true;
  task.type = operation.result.type;
  task.reduction = operation.reduction;
  task.inputs = size();
  task.are_sums = true;
  task.header = header_of(operation);
  task.header.part = kRingPart;
  lane.ring.begin(std::move(task),
                  lane.links.to(map_.leader(lane.slice, (host_ + 1) % map_.hosts())));
}

bool HierarchicalCommunicator::turn(const Operation& operation, Lane& lane) {
  const int hosts = map_.hosts();
  if (!lane.begun) begin_ring(operation, lane);
  if (lane.ring.done()) return false;
  Link& next = lane.links.to(map_.leader(lane.slice, (host_ + 1) % hosts));
  Link& previous = lane.links.to(map_.leader(lane.slice, (host_ + hosts - 1) % hosts));
  lane.ring.allow(lane.own_ready, lane.rest_ready);
  const bool moved = lane.ring.advance(next, previous);
  if (!lane.ring.fault().empty()) lane.links.reject(previous.rank(), lane.ring.fault());
  return moved;
}

// --- Out.

// So many bytes of the plan's results are whole.
size_t HierarchicalCommunicator::results_of(const Lane& lane) const {
  const size_t own = plan_of(lane).own.bytes();
  const bool sums = under_way().kind == OperationKind::kAllreduce;
  if (map_.hosts() == 1) return lane.own_ready;
  if (!lane.begun) return 0;
  if (sums) return lane.ring.results();
  return lane.own_ready < own ? lane.own_ready : own + lane.ring.results();
}

bool HierarchicalCommunicator::push(Lane& lane) {
  const size_t end = std::min(results_of(lane), lane.pushed + kCopyBytes);
  if (end == lane.pushed) return false;
  for (int k = 0; k < local_size_; ++k) {
    if (!gets_pushed(k)) continue;
    std::byte* tensor = tensor_of(k);
    fault_point("collective_copy");
    plan_of(lane).results.each(lane.pushed, end, [&](const ByteRange& range, size_t) {
      memcpy(tensor + range.begin, flow_.data + range.begin, range.bytes());
    });
  }
  lane.pushed = end;
  return true;
}

// A round: of every slice that this rank leads the next results, to where takers read them.
bool HierarchicalCommunicator::give(const Operation& operation) {
  if (flow_.given == flow_.give_rounds) return false;
  const size_t begin = flow_.given * areas_.output.block_bytes;
  for (const Lane& lane : lanes_)
    if (results_of(lane) <
        std::min(plan_of(lane).results.bytes(), begin + areas_.output.block_bytes))
      return false;
  if (flow_.given >= areas_.output.slots)
    for (int k = 0; k < local_size_; ++k)
      if (k != me_ && takes_results(k) &&
          !has_said(k, words(k).taken,
                    stamp(operation.sequence, flow_.given + 1 - areas_.output.slots)))
        return false;
  fault_point("collective_stage");
  std::byte* into = output_area(me_) +
                    flow_.given % areas_.output.slots * lanes_.size() * areas_.output.block_bytes;
  for (const Lane& lane : lanes_) {
    plan_of(lane).results.each(
        begin, begin + areas_.output.block_bytes, [&](const ByteRange& range, size_t at) {
          memcpy(into + (at - begin), flow_.data + range.begin, range.bytes());
        });
    into += areas_.output.block_bytes;
  }
  publish(mine().given, stamp(operation.sequence, ++flow_.given));
  return true;
}

// A round: of every slice that others lead the next results. One slice in one go.
bool HierarchicalCommunicator::take(const Operation& operation) {
  if (flow_.taken == flow_.take_rounds) return false;
  const size_t begin = flow_.taken * areas_.output.block_bytes;
  for (; flow_.next_slice < map_.slices(); ++flow_.next_slice) {
    const int leader = leader_of(flow_.next_slice);
    const LanePlan& plan = plans_[static_cast<size_t>(flow_.next_slice)];
    if (leader == me_ || plan.results.bytes() <= begin) continue;
    if (!has_said(leader, words(leader).given, stamp(operation.sequence, flow_.taken + 1)))
      return false;
    fault_point("collective_copy");
    const auto lanes = static_cast<uint64_t>(map_.led_by(leader, host_).size());
    const auto lane = static_cast<uint64_t>(flow_.next_slice / local_size_);
    const std::byte* from =
        output_area(leader) +
        (flow_.taken % areas_.output.slots * lanes + lane) * areas_.output.block_bytes;
    plan.results.each(begin, begin + areas_.output.block_bytes,
                      [&](const ByteRange& range, size_t at) {
                        memcpy(flow_.data + range.begin, from + (at - begin), range.bytes());
                      });
    ++flow_.next_slice;
    break;
  }
  if (flow_.next_slice < map_.slices()) return true;
  flow_.next_slice = 0;
  publish(mine().taken, stamp(operation.sequence, ++flow_.taken));
  return true;
}

bool HierarchicalCommunicator::is_over(const Lane& lane) const {
  const LanePlan& plan = plan_of(lane);
  const bool turned = map_.hosts() == 1 || (lane.begun && lane.ring.done());
  return turned && results_of(lane) == plan.results.bytes() &&
         (!flow_.pushes || lane.pushed == plan.results.bytes());
}

}  // namespace hvd
