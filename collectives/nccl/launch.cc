// From an operation to what NCCL is called for, and its events.
#include <numeric>

#include "collectives/describe.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/nccl/nccl_reduction.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

constexpr auto kAcquire = std::memory_order_acquire;

// Operation::stage.
enum Stage : uint32_t { kQueued, kLaunched, kToRefuse };

bool needs_host(OperationKind kind) {
  return kind == OperationKind::kAllgather || kind == OperationKind::kBarrier ||
         kind == OperationKind::kSegment;
}

// Where ranks are apart what is registered goes through memory that is not.
bool goes_aside(const Operation& operation) {
  return operation.apart && operation.aside != nullptr && operation.result.count != 0;
}

}  // namespace

void NcclCommunicator::start(Operation& operation) {
  if (!queue_.push(operation)) return;
  if (next_ == nullptr) next_ = &operation;
  try {
    if (state_ == State::kUnmade || operation.kind == OperationKind::kReconnect)
      start_sharing_ids();
    if (state_ == State::kUnmade) state_ = State::kSharesIds;
  } catch (const Error& error) {
    fail(error.what());
  }
  if (needs_host(operation.kind)) start_host_part(operation);
}

void NcclCommunicator::start_host_part(const Operation& operation) {
  host_parts_.push_back(std::make_unique<HostPart>());
  HostPart& part = *host_parts_.back();
  part.operation.kind = operation.kind;
  part.operation.name = operation.name;
  part.operation.segment = operation.segment;
  part.operation.segment_bytes = operation.segment_bytes;
  part.operation.populate_bytes = operation.populate_bytes;
  if (operation.kind == OperationKind::kAllgather) {
    part.count = operation.input.count;
    part.counts.resize(static_cast<size_t>(size_));
    part.operation.result.type = DataType::kInt64;
    part.operation.input = {&part.count, 1, DataType::kInt64};
    part.operation.allocate = [&part](std::span<const uint64_t>) {
      return static_cast<void*>(part.counts.data());
    };
  }
  control_.start(part.operation);
}

NcclCommunicator::Step NcclCommunicator::launch() {
  Operation& operation = *next_;
  if (called_) {
    finish_launch(operation);
  } else if (operation.kind == OperationKind::kReconnect) {
    return reconnect(operation);
  } else if (!needs_host(operation.kind)) {
    call(operation);
  } else {
    const Outcome outcome = host_parts_.front()->operation.outcome.load(kAcquire);
    if (outcome == Outcome::kPending || outcome > Outcome::kRefused) return Step::kWait;
    take_host_part(operation);
  }
  return Step::kMoved;
}

// Once all that was launched before has been done.
NcclCommunicator::Step NcclCommunicator::reconnect(const Operation& operation) {
  if (queue_.oldest() != &operation || !ids_->have_come()) return Step::kWait;
  called_ = renews_ = true;
  begin_abort();
  return Step::kMoved;
}

void NcclCommunicator::take_host_part(Operation& operation) {
  const HostPart& part = *host_parts_.front();
  if (part.operation.outcome.load(kAcquire) == Outcome::kRefused)
    refuse(operation, part.operation.code, part.operation.error);
  else if (operation.kind == OperationKind::kAllgather)
    call(operation);
  else
    finish_launch(operation);
  host_parts_.pop_front();
}

void NcclCommunicator::refuse(Operation& operation, ErrorCode code, const std::string& why) {
  operation.code = code;
  operation.error = why;
  operation.stage = kToRefuse;
  go_to_next(operation);
}

void NcclCommunicator::call(Operation& operation) {
  entered_ = operation.sequence;
  fault_point("collective_entered");
  calling_ = describe(operation);
  if (operation.kind == OperationKind::kRegister) calling_ += " (NCCL_WIN_ENABLE=0 does without)";
  if (operation.kind == OperationKind::kAllgather)
    operation.result.data = operation.allocate(host_parts_.front()->counts);
  if (operation.ready != nullptr)
    device_.wait(device_.stream(), static_cast<CUevent>(operation.ready));
  if (goes_aside(operation))
    device_.copy(operation.aside, operation.result.data, operation.result.bytes());
  called_ = true;
  called_at_ = Clock::now();
  expected_.begin(called_at_);
  if (went(call_nccl(operation))) finish_launch(operation);
}

ncclResult_t NcclCommunicator::call_nccl(Operation& operation) {
  const Buffer& data = operation.result;
  switch (operation.kind) {
    case OperationKind::kAllgather:
      return call_allgather(operation);
    case OperationKind::kBroadcast:
      if (data.count == 0) break;
      return nccl_.ncclBroadcast(data.data, data.data, data.bytes(), ncclUint8, operation.root,
                                 communicator_, device_.stream());
    case OperationKind::kAllreduce:
      if (data.count == 0) break;
      return call_allreduce(operation);
    case OperationKind::kRegister:
      return windows_.add(communicator_, data);
    case OperationKind::kDeregister:
      return windows_.remove(communicator_, data);
    case OperationKind::kBarrier:
    case OperationKind::kSegment:
    case OperationKind::kReconnect:
      break;
  }
  return ncclSuccess;
}

ncclResult_t NcclCommunicator::call_allreduce(const Operation& operation) {
  const Buffer& data = operation.result;
  void* at = goes_aside(operation) ? operation.aside : data.data;
  const ncclDataType_t type = nccl_type_of(data.type);
  NcclReduction reduction = nccl_reduction_of(operation.reduction, data.type, size_);
  device_.kernels().scale(data.type, reduction.before, at, data.count, device_.stream());
  if (reduction.factor != 1) {
    NcclScalar scalar = nccl_scalar(reduction.factor, data.type);
    const ncclResult_t made = nccl_.ncclRedOpCreatePreMulSum(
        &reduction.op, scalar.bytes, type, ncclScalarHostImmediate, communicator_);
    // Under way would be taken for the allreduce.
    if (made != ncclSuccess) return made == ncclInProgress ? ncclInternalError : made;
    own_op_ = reduction.op;
  }
  return nccl_.ncclAllReduce(at, at, data.count, type, reduction.op, communicator_,
                             device_.stream());
}

// Parts of different lengths are as many broadcasts, launched as one. A rank that has no room for
// the result cannot stay away from what the others launch: that breaks the epoch.
ncclResult_t NcclCommunicator::call_allgather(Operation& operation) {
  const std::vector<uint64_t>& counts = host_parts_.front()->counts;
  const size_t each = size_of(operation.result.type);
  const CUstream stream = device_.stream();
  auto* to = static_cast<std::byte*>(operation.result.data);
  const uint64_t sum = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  if (sum == 0) return ncclSuccess;
  if (std::equal(counts.begin() + 1, counts.end(), counts.begin()))
    return nccl_.ncclAllGather(operation.input.data, to, operation.input.bytes(), ncclUint8,
                               communicator_, stream);
  ncclResult_t result = nccl_.ncclGroupStart();
  if (result != ncclSuccess) return result;
  for (int k = 0; k < size_; ++k) {
    const size_t bytes = counts[static_cast<size_t>(k)] * each;
    const void* from = k == me_ ? operation.input.data : to;
    if (bytes != 0) {
      const ncclResult_t one =
          nccl_.ncclBroadcast(from, to, bytes, ncclUint8, k, communicator_, stream);
      if (one != ncclSuccess && one != ncclInProgress) result = one;
    }
    to += bytes;
  }
  const ncclResult_t end = nccl_.ncclGroupEnd();
  return result == ncclSuccess ? end : result;
}

void NcclCommunicator::finish_launch(Operation& operation) {
  if (own_op_) nccl_.ncclRedOpDestroy(*own_op_, communicator_);
  own_op_.reset();
  if (operation.kind == OperationKind::kRegister && !windows_.finish_add(communicator_))
    return refuse(operation, ErrorCode::kUnsupported, "NCCL does not register memory here");
  if (goes_aside(operation))
    device_.copy(operation.result.data, operation.aside, operation.result.bytes());
  if (operation.kind == OperationKind::kAllreduce)
    scale_result(operation.result, operation.reduction);
  fault_point("nccl_launched");
  auto done = static_cast<CUevent>(operation.done);
  if (done == nullptr) {
    events_.push_back(device_.take_event());
    done = events_.back().get();
  }
  device_.record(done, device_.stream());
  operation.stage = kLaunched;
  operation.launched.store(true, std::memory_order_release);
  go_to_next(operation);
}

void NcclCommunicator::scale_result(const Buffer& data, const Reduction& reduction) {
  const Factors factors = nccl_reduction_of(reduction, data.type, size_).after;
  device_.kernels().scale(data.type, factors, data.data, data.count, device_.stream());
}

void NcclCommunicator::go_to_next(const Operation& operation) {
  next_ = operation.next;
  called_ = false;
}

bool NcclCommunicator::complete() {
  bool moved = false;
  while (queue_.oldest() != next_) {
    Operation& operation = *queue_.oldest();
    const bool refused = operation.stage == kToRefuse, own = operation.done == nullptr;
    if (!refused) {
      const auto done = own ? events_.front().get() : static_cast<CUevent>(operation.done);
      if (!device_.is_done(done)) break;
      if (own) events_.pop_front();
    }
    queue_.resolve(refused ? Outcome::kRefused : Outcome::kComplete);
    moved = true;
  }
  return moved;
}

}  // namespace hvd
