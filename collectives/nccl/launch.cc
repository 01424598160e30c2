// From an operation to what NCCL is called for, and its events.
#include <algorithm>
#include <numeric>

#include "collectives/describe.h"
#include "collectives/nccl/nccl_reduction.h"
#include "collectives/nccl/nccl_thread.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

constexpr auto kAcquire = std::memory_order_acquire;

// More wait in the driver for the device, which then holds up who calls it, and with that the way
// out of a broken epoch (CUDA 13 has room for 1024 launches of a stream).
constexpr size_t kMostLaunched = 128;

// Where ranks are apart what is registered goes through memory that is not.
bool goes_aside(const Operation& operation) {
  return operation.apart && operation.aside != nullptr && operation.result.count != 0;
}

}  // namespace

NcclThread::Step NcclThread::launch() {
  Operation& operation = next();
  if (called_) {
    finish_launch(operation);
  } else if (operation.kind == OperationKind::kReconnect) {
    return reconnect();
  } else if (launched_.size() >= kMostLaunched ||
             (operation.kind == OperationKind::kSplit && !launched_.empty())) {
    return Step::kWait;
  } else if (const HostPart* part = to_launch_.front().host.get(); part == nullptr) {
    return call(operation);
  } else {
    const Outcome outcome = part->operation.outcome.load(kAcquire);
    if (outcome == Outcome::kPending || outcome > Outcome::kRefused) return Step::kWait;
    return take_host_part(operation);
  }
  return Step::kMoved;
}

// Once all that was launched before has been done.
NcclThread::Step NcclThread::reconnect() {
  if (members_.size() > 1)
    throw Error(ErrorCode::kUnavailable,
                "ranks cannot connect anew where communicators were split from the first one");
  if (!launched_.empty()) return Step::kWait;
  if (doing() != Doing::kSharesIds) be(Doing::kSharesIds);
  {
    MutexLock lock(mutex_);
    if (!ids_->have_come()) return Step::kWait;
  }
  called_ = true;
  abort();
  return Step::kMoved;
}

NcclThread::Step NcclThread::take_host_part(Operation& operation) {
  const Operation& part = to_launch_.front().host->operation;
  if (part.outcome.load(kAcquire) == Outcome::kRefused)
    refuse(operation, part.code, part.error);
  else if (operation.kind == OperationKind::kAllgather)
    return call(operation);
  else
    finish_launch(operation);
  return Step::kMoved;
}

void NcclThread::refuse(Operation& operation, ErrorCode code, const std::string& why) {
  operation.code = code;
  operation.error = why;
  go_to_next({.operation = &operation, .member = to_launch_.front().member, .refused = true});
}

// Not once the end is about to be ordered: that looks at what has been called for.
bool NcclThread::may_call(const Operation& operation) {
  MutexLock lock(mutex_);
  if (closing_) return false;
  called_for_[to_launch_.front().member] = operation.sequence;
  return true;
}

NcclThread::Step NcclThread::call(Operation& operation) {
  if (!may_call(operation)) return Step::kWait;
  fault_point("collective_entered");
  const bool registers = operation.kind == OperationKind::kRegister;
  begin_call(describe(operation) + (registers ? " (NCCL_WIN_ENABLE=0 does without)" : ""),
             to_launch_.front().member);
  if (operation.kind == OperationKind::kAllgather)
    operation.result.data = operation.allocate(to_launch_.front().host->counts);
  if (operation.ready != nullptr)
    device_.wait(device_.stream(), static_cast<CUevent>(operation.ready));
  if (goes_aside(operation))
    device_.copy(operation.aside, operation.result.data, operation.result.bytes());
  called_ = true;
  called_at_ = Clock::now();
  expected_.begin(called_at_);
  if (went(call_nccl(operation))) finish_launch(operation);
  return Step::kMoved;
}

ncclResult_t NcclThread::call_nccl(Operation& operation) {
  const Buffer& data = operation.result;
  switch (operation.kind) {
    case OperationKind::kAllgather:
      return call_allgather(operation);
    case OperationKind::kBroadcast:
      if (data.count == 0) break;
      return nccl_.ncclBroadcast(data.data, data.data, data.bytes(), ncclUint8, operation.root,
                                 member().communicator, device_.stream());
    case OperationKind::kAllreduce:
      if (data.count == 0) break;
      return call_allreduce(operation);
    case OperationKind::kRegister:
      return member().windows.add(member().communicator, data);
    case OperationKind::kDeregister:
      return member().windows.remove(member().communicator, data);
    case OperationKind::kSplit:
      return call_split(operation);
    case OperationKind::kBarrier:
    case OperationKind::kSegment:
    case OperationKind::kReconnect:
      break;
  }
  return ncclSuccess;
}

// Of all ranks of the first one, with nothing of any member's in flight (NCCL's user guide,
// ncclCommSplit); those that go nowhere call it, too. NCCL writes the child there when it is done.
ncclResult_t NcclThread::call_split(const Operation& operation) {
  HVD_CHECK(operation.stage == members_.size(), "all splits are the first one's");
  const ncclComm_t first = members_[0].communicator;
  Member& child = members_.emplace_back(nccl_);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 1;
  return nccl_.ncclCommSplit(first, operation.color < 0 ? NCCL_SPLIT_NOCOLOR : operation.color,
                             operation.key, &child.communicator, &config);
}

ncclResult_t NcclThread::call_allreduce(const Operation& operation) {
  const Buffer& data = operation.result;
  void* at = goes_aside(operation) ? operation.aside : data.data;
  const ncclDataType_t type = nccl_type_of(data.type);
  NcclReduction reduction =
      nccl_reduction_of(operation.reduction, data.type, to_launch_.front().size);
  device_.kernels().scale(data.type, reduction.before, at, data.count, device_.stream());
  if (reduction.factor != 1) {
    NcclScalar scalar = nccl_scalar(reduction.factor, data.type);
    const ncclResult_t made = nccl_.ncclRedOpCreatePreMulSum(
        &reduction.op, scalar.bytes, type, ncclScalarHostImmediate, member().communicator);
    if (made == ncclInProgress)  // which would be taken for the allreduce
      throw Error(ErrorCode::kUnavailable,
                  "NCCL failed in " + calling_ + ": ncclRedOpCreatePreMulSum is still under way");
    if (made != ncclSuccess) return made;
    own_op_ = reduction.op;
  }
  return nccl_.ncclAllReduce(at, at, data.count, type, reduction.op, member().communicator,
                             device_.stream());
}

// Parts of different lengths are as many broadcasts, launched as one. A rank that has no room for
// the result cannot stay away from what the others launch: that breaks the epoch.
ncclResult_t NcclThread::call_allgather(Operation& operation) {
  const std::vector<uint64_t>& counts = to_launch_.front().host->counts;
  const size_t each = size_of(operation.result.type);
  const CUstream stream = device_.stream();
  auto* to = static_cast<std::byte*>(operation.result.data);
  const uint64_t sum = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  if (sum == 0) return ncclSuccess;
  if (std::equal(counts.begin() + 1, counts.end(), counts.begin()))
    return nccl_.ncclAllGather(operation.input.data, to, operation.input.bytes(), ncclUint8,
                               member().communicator, stream);
  ncclResult_t result = nccl_.ncclGroupStart();
  if (result != ncclSuccess) return result;
  for (int k = 0; k < to_launch_.front().size; ++k) {
    const size_t bytes = counts[static_cast<size_t>(k)] * each;
    const void* from = k == to_launch_.front().me ? operation.input.data : to;
    if (bytes != 0) {
      const ncclResult_t one =
          nccl_.ncclBroadcast(from, to, bytes, ncclUint8, k, member().communicator, stream);
      if (one != ncclSuccess && one != ncclInProgress) result = one;
    }
    to += bytes;
  }
  const ncclResult_t end = nccl_.ncclGroupEnd();
  return result == ncclSuccess ? end : result;
}

void NcclThread::finish_launch(Operation& operation) {
  if (own_op_) nccl_.ncclRedOpDestroy(*own_op_, member().communicator);
  own_op_.reset();
  if (operation.kind == OperationKind::kRegister &&
      !member().windows.finish_add(member().communicator))
    return refuse(operation, ErrorCode::kUnsupported, "NCCL does not register memory here");
  if (goes_aside(operation))
    device_.copy(operation.result.data, operation.aside, operation.result.bytes());
  if (operation.kind == OperationKind::kAllreduce)
    scale_result(operation.result, operation.reduction);
  fault_point("nccl_launched");
  Launched launched{&operation, to_launch_.front().member, static_cast<CUevent>(operation.done)};
  if (launched.done == nullptr) {
    launched.own = device_.take_event();
    launched.done = launched.own.get();
  }
  device_.record(launched.done, device_.stream());
  operation.launched.store(true, std::memory_order_release);
  news_to_tell_ = std::max(news_to_tell_, News::kForWaiters);
  go_to_next(std::move(launched));
}

void NcclThread::scale_result(const Buffer& data, const Reduction& reduction) {
  const Factors factors = nccl_reduction_of(reduction, data.type, to_launch_.front().size).after;
  device_.kernels().scale(data.type, factors, data.data, data.count, device_.stream());
}

void NcclThread::go_to_next(Launched launched) {
  launched_.push_back(std::move(launched));
  to_launch_.pop_front();
  called_ = false;
}

}  // namespace hvd
