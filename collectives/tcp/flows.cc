// What is left of a long operation when all have agreed: bytes that flow.
#include <string.h>

#include <algorithm>
#include <numeric>

#include "collectives/gather_room.h"
#include "collectives/reduce.h"
#include "collectives/tcp/tcp_communicator.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

constexpr size_t kBlockBytes = 128 * 1024;

}  // namespace

TcpCommunicator::Step TcpCommunicator::flow(Operation& operation) {
  switch (operation.kind) {
    case OperationKind::kAllreduce:
      if (size_ == 1) return alone(operation);
      if (exchange_.rider() == Rider::kHalf) return doubling(operation);
      return exchange_.rider() == Rider::kNobody ? ring(operation) : Step::kDone;
    case OperationKind::kBroadcast:
      return size_ > 1 && exchange_.rider() == Rider::kNobody ? chain(operation) : Step::kDone;
    case OperationKind::kAllgather:
      return gather(operation);
    case OperationKind::kBarrier:
    case OperationKind::kSegment:
    case OperationKind::kRegister:
    case OperationKind::kDeregister:
    case OperationKind::kReconnect:
    case OperationKind::kSplit:
      break;
  }
  return Step::kDone;
}

// A world of one: nothing but factors.
TcpCommunicator::Step TcpCommunicator::alone(Operation& operation) {
  const Reduction& reduction = operation.reduction;
  if (reduction.prescale == 1 && reduction.postscale == 1) return Step::kDone;
  auto* data = static_cast<std::byte*>(operation.result.data);
  const std::byte* source = data;
  reduce(operation.result.type, reduction, std::span(&source, 1), std::span(&data, 1),
         operation.result.count);
  return Step::kDone;
}

RingTask TcpCommunicator::ring_task(const Operation& operation, std::byte* data) const {
  RingTask task;
  task.place = me_;
  task.places = size_;
  task.data = data;
  task.spreads = true;
  task.type = operation.result.type;
  task.header = header_of(operation, kRingPart);
  return task;
}

TcpCommunicator::Step TcpCommunicator::run_ring() {
  Link& next = links_.to((me_ + 1) % size_);
  Link& previous = links_.to((me_ + size_ - 1) % size_);
  const bool moved = ring_.advance(next, previous);
  if (!ring_.fault().empty()) links_.reject(previous.rank(), ring_.fault());
  if (ring_.done()) return Step::kDone;
  return moved ? Step::kMoved : Step::kWait;
}

void TcpCommunicator::begin_ring(RingTask task) {
  flow_.begun = true;
  ring_.begin(std::move(task), links_.to((me_ + 1) % size_));
}

TcpCommunicator::Step TcpCommunicator::ring(Operation& operation) {
  if (!flow_.begun) {
    RingTask task = ring_task(operation, static_cast<std::byte*>(operation.result.data));
    task.chunk_bytes = ring_chunk_bytes(exchange_.far());
    task.sums = true;
    task.reduction = operation.reduction;
    task.inputs = size_;
    const size_t element = size_of(task.type);
    for (int k = 0; k < size_; ++k) {
      const Slice slice = slice_of(operation.result.count, k, size_, task.type);
      task.parts.push_back({slice.begin * element, slice.end * element});
    }
    begin_ring(std::move(task));
  }
  return run_ring();
}

// From the root on, each to the next one, as it comes: of a ring's parts there is but the root's.
TcpCommunicator::Step TcpCommunicator::chain(Operation& operation) {
  if (!flow_.begun) {
    RingTask task = ring_task(operation, static_cast<std::byte*>(operation.result.data));
    task.parts.resize(static_cast<size_t>(size_));
    task.parts[static_cast<size_t>(operation.root)] = {0, operation.result.bytes()};
    begin_ring(std::move(task));
  }
  return run_ring();
}

// The halves go back, the last one that was given away first; each is its neighbour's result.
TcpCommunicator::Step TcpCommunicator::doubling(Operation& operation) {
  const DataType type = operation.result.type;
  const size_t element = size_of(type), count = operation.result.count;
  auto* data = static_cast<std::byte*>(operation.result.data);
  bool moved = false;
  for (; flow_.step < cube_swaps(size_); ++flow_.step) {
    const int swap = cube_swaps(size_) - 1 - flow_.step, peer = me_ ^ (1 << swap);
    const Slice own = kept_after(me_, swap + 1, count, type);
    const Slice other = kept_after(peer, swap + 1, count, type);
    Link& link = links_.to(peer);
    FrameHeader header = header_of(operation, kDoublePart + static_cast<unsigned>(swap));
    if (!flow_.begun) {
      flow_.begun = true;
      flow_.has_header = false;
      flow_.at = flow_.sent = 0;
      header.bytes = own.size() * element;
      link.post(header);
    }
    moved |= link.send(data + own.begin * element, own.size() * element, &flow_.sent);
    if (!flow_.has_header) {
      header.from = static_cast<uint32_t>(peer);
      header.bytes = other.size() * element;
      if (!take_flow_header(link, header)) return moved ? Step::kMoved : Step::kWait;
    }
    fault_point("link_piece");
    moved |= link.receive(data + other.begin * element, other.size() * element, &flow_.at);
    if (!link.header_sent() || flow_.sent < own.size() * element ||
        flow_.at < other.size() * element)
      return moved ? Step::kMoved : Step::kWait;
    flow_.begun = false;
  }
  return Step::kDone;
}

bool TcpCommunicator::take_flow_header(Link& link, const FrameHeader& due) {
  const FrameHeader* got = link.header();
  if (got == nullptr) return false;
  const std::string fault = agreed_frame_fault(*got, due);
  if (!fault.empty()) {
    links_.reject(link.rank(), fault);
    return false;
  }
  link.take_header();
  flow_.has_header = true;
  return true;
}

// All counts are known: room for the result, then round the ring. This rank's part goes out as it
// is copied to its place in it.
TcpCommunicator::Step TcpCommunicator::gather(Operation& operation) {
  if (!flow_.has_room) {
    if (!begin_gather(operation)) return Step::kMoved;
    if (links_.broken_off()) return Step::kWait;
    flow_.has_room = true;
  }
  if (size_ > 1 && !flow_.begun) {
    const size_t element = size_of(operation.result.type);
    RingTask task = ring_task(operation, flow_.result);
    size_t start = 0;
    for (uint64_t count : exchange_.counts()) {
      task.parts.push_back({start, start + count * element});
      start += count * element;
    }
    begin_ring(std::move(task));
  }
  const bool copied = copy_own_part(operation);
  if (size_ == 1) return copied ? Step::kMoved : Step::kDone;
  ring_.allow(flow_.at, RingStream::kAll);
  const Step step = run_ring();
  return step == Step::kWait && copied ? Step::kMoved : step;
}

// A piece of it; false if it is there.
bool TcpCommunicator::copy_own_part(const Operation& operation) {
  const size_t bytes = operation.input.bytes(), part = std::min(kBlockBytes, bytes - flow_.at);
  if (part == 0) return false;
  const auto first = exchange_.counts().begin();
  const size_t before =
      size_of(operation.result.type) * std::accumulate(first, first + me_, uint64_t{0});
  memcpy(flow_.result + before + flow_.at,
         static_cast<const std::byte*>(operation.input.data) + flow_.at, part);
  flow_.at += part;
  return true;
}

// False while room for the result is made. A rank that has none hands the others' parts on all the
// same.
bool TcpCommunicator::begin_gather(Operation& operation) {
  const std::vector<uint64_t>& counts = exchange_.counts();
  const GatherRoom room = make_gather_room(operation, counts);
  if (!room.is_made) return false;
  flow_.result = room.at;
  flow_.refused = room.is_refused;
  const size_t bytes =
      size_of(operation.result.type) * std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  if (!room.is_refused || bytes == 0) return true;
  nowhere_ = room_to_hand_on(bytes);
  flow_.result = nowhere_.get();
  if (flow_.result == nullptr)
    links_.break_off(TroubleReason::kEngineError,
                     "rank " + std::to_string(me_) + ": " + operation.error, me_);
  return true;
}

}  // namespace hvd
