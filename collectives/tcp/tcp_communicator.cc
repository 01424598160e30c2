// Order and links: which operation is under way, and what breaks it off.
#include "collectives/tcp/tcp_communicator.h"

#include <numeric>

#include "collectives/describe.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

constexpr auto kAcquire = std::memory_order_acquire;

std::vector<int> numbers_below(int count) {
  std::vector<int> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

// Neighbours in the ring and in the cube.
std::vector<int> ranks_to_link(int rank, int size, std::vector<int> ranks) {
  ranks.push_back((rank + 1) % size);
  ranks.push_back((rank + size - 1) % size);
  return ranks;
}

}  // namespace

std::unique_ptr<Communicator> make_tcp_communicator(Peers& peers, Arena& arena,
                                                    const CommunicatorSpec& spec) {
  return std::make_unique<TcpCommunicator>(peers, arena, spec);
}

TcpCommunicator::TcpCommunicator(Peers& peers, Arena& arena, const CommunicatorSpec& spec)
    : peers_(peers),
      arena_(arena),
      block_(peers.block()),
      me_(peers.world().rank),
      size_(peers.world().size),
      exchange_(me_, numbers_below(size_)),
      links_(peers, spec.links, ranks_to_link(me_, size_, exchange_.neighbours()), spec.name),
      queue_(mix_hash(mix_hash(0, peers.world().epoch), spec.seed)) {}

void TcpCommunicator::start(Operation& operation) { queue_.push(operation); }

bool TcpCommunicator::progress() {
  if (links_.says_goodbye()) return links_.go_on_with_goodbye();
  if (closed_ || links_.broken_off() || queue_.empty() || !links_.take()) return false;
  const bool moved = advance(*queue_.oldest()) != Step::kWait;
  if (leaves_)
    go_on_leaving(moved);
  else if (!moved)
    links_.look();
  return moved || closed_;
}

TcpCommunicator::Step TcpCommunicator::advance(Operation& operation) {
  switch (stage_) {
    case Stage::kBegin:
      return begin(operation);
    case Stage::kExchange: {
      const Step step = exchange_.advance(links_);
      return step == Step::kDone ? leave_exchange(operation) : step;
    }
    case Stage::kTell: {
      const Step step = exchange_.advance(links_);
      return step == Step::kDone ? refuse(operation) : step;
    }
    case Stage::kFlow:
      break;
  }
  const Step step = flow(operation);
  if (step == Step::kDone) finish(flow_.refused ? Outcome::kRefused : Outcome::kComplete);
  return step;
}

TcpCommunicator::Step TcpCommunicator::begin(Operation& operation) {
  if (operation.kind == OperationKind::kSegment) {
    const NewSegment::Step step = new_segment_.prepare(operation, peers_, arena_);
    if (step != NewSegment::Step::kDone)
      return step == NewSegment::Step::kWait ? Step::kWait : Step::kMoved;
  }
  if (operation.kind == OperationKind::kAllgather) {
    exchange_.counts().assign(static_cast<size_t>(size_), kUnknownCount);
    exchange_.counts()[static_cast<size_t>(me_)] = operation.input.count;
  }
  ExchangeTask task = exchange_task(operation, rider_of(operation));
  task.differs = !new_segment_.unable().empty();
  exchange_.begin(task);
  stage_ = Stage::kExchange;
  entered_ = operation.sequence;
  flow_ = Flow{};
  fault_point("collective_entered");
  return advance(operation);
}

TcpCommunicator::Step TcpCommunicator::leave_exchange(Operation& operation) {
  if (!exchange_.differs()) {
    stage_ = Stage::kFlow;
    return advance(operation);
  }
  exchange_.sides() = {own_side(operation)};
  exchange_.begin(exchange_task(operation, Rider::kSides));
  stage_ = Stage::kTell;
  return Step::kMoved;
}

Side TcpCommunicator::own_side(const Operation& operation) {
  const std::string unable = new_segment_.take_unable();
  return {me_, operation.hash, !unable.empty(), unable.empty() ? describe(operation) : unable};
}

TcpCommunicator::Step TcpCommunicator::refuse(Operation& operation) {
  set_refusal(operation, exchange_.sides());
  NewSegment::undo(operation, arena_);
  finish(Outcome::kRefused);
  return Step::kDone;
}

void TcpCommunicator::finish(Outcome outcome) {
  stage_ = Stage::kBegin;
  nowhere_.reset();
  queue_.resolve(outcome);
}

FrameHeader TcpCommunicator::header_of(const Operation& operation, unsigned part) const {
  return {.epoch = peers_.world().epoch,
          .sequence = operation.sequence,
          .hash = operation.hash,
          .from = static_cast<uint32_t>(me_),
          .part = static_cast<uint16_t>(part)};
}

Rider TcpCommunicator::rider_of(const Operation& operation) const {
  switch (operation.kind) {
    case OperationKind::kAllreduce:
      switch (allreduce_way(operation.result.count, operation.result.type, size_)) {
        case AllreduceWay::kSwap:
          return Rider::kTensor;
        case AllreduceWay::kHalve:
          return Rider::kHalf;
        case AllreduceWay::kRing:
          return Rider::kNobody;
      }
      break;
    case OperationKind::kBroadcast:
      return broadcast_rides(operation.result.bytes()) ? Rider::kRooted : Rider::kNobody;
    case OperationKind::kAllgather:
      return Rider::kCounts;
    case OperationKind::kBarrier:
    case OperationKind::kSegment:
    case OperationKind::kRegister:
    case OperationKind::kDeregister:
    case OperationKind::kReconnect:
    case OperationKind::kSplit:
      break;
  }
  return Rider::kNobody;
}

ExchangeTask TcpCommunicator::exchange_task(const Operation& operation, Rider rider) const {
  auto* data = static_cast<std::byte*>(operation.result.data);
  return {.rider = rider,
          .header = header_of(operation, 0),
          .data = data,
          .result = data,
          .count = operation.result.count,
          .type = operation.result.type,
          .reduction = operation.reduction,
          .inputs = size_,
          .root = operation.root};
}

std::chrono::milliseconds TcpCommunicator::watch(std::vector<pollfd>& descriptors) const {
  const bool waits = !closed_ && !links_.broken_off() && !queue_.empty();
  return waits || links_.says_goodbye() ? links_.watch(descriptors)
                                        : std::chrono::milliseconds::max();
}

// In a whole epoch, with nothing under way, whoever waits for this rank is told.
void TcpCommunicator::close() {
  if (leaves_) return;
  leaves_ = true;
  fault_point("collective_closed");
  if (queue_.empty() && block_.trouble.load(kAcquire) == 0) {
    closed_ = true;
    return links_.say_goodbye(queue_.started() + 1);
  }
  links_.leave();
  go_on_leaving(true);
}

void TcpCommunicator::go_on_leaving(bool moved) {
  if (stage_ != Stage::kBegin && !links_.is_hopeless(moved)) return;
  closed_ = true;
  links_.end();
}

void TcpCommunicator::fail_rest() {
  queue_.be_over();
  while (!queue_.empty()) finish(Outcome::kFailedUndefined);
}

void TcpCommunicator::abort() noexcept {
  raise_trouble(peers_, TroubleReason::kAbort, "abort() was called");
}

// Of whom this rank has not heard, by what has come in and by what waits on its links; who has no
// link to it yet.
std::vector<int> TcpCommunicator::missing_ranks() const {
  std::vector<int> missing;
  if (queue_.empty() || stage_ == Stage::kFlow || stage_ == Stage::kTell) return missing;
  if (!links_.taken()) return links_.missing();
  const std::vector<bool> heard =
      exchange_.heard(links_, queue_.oldest()->sequence, stage_ == Stage::kExchange);
  for (int k = 0; k < size_; ++k)
    if (!heard[static_cast<size_t>(k)]) missing.push_back(k);
  return missing;
}

}  // namespace hvd
