#include "collectives/nccl/nccl_communicator.h"

#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <new>
#include <utility>

#include "collectives/describe.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

constexpr auto kAcquire = std::memory_order_acquire;
constexpr int kExitStuck = 125;
constexpr std::chrono::milliseconds kLookForAbort{10};  // whether it is over its limit

bool needs_host(OperationKind kind) {
  return kind == OperationKind::kAllgather || kind == OperationKind::kBarrier ||
         kind == OperationKind::kSegment;
}

}  // namespace

NcclCommunicator::NcclCommunicator(Peers& peers, CudaDevice& device, const NcclLibrary& nccl,
                                   std::string name, Communicator& control,
                                   const NcclLimits& limits)
    : peers_(peers),
      device_(device),
      nccl_(nccl),
      name_(std::move(name)),
      control_(control),
      limits_(limits),
      queue_(0) {}

NcclCommunicator::~NcclCommunicator() {
  if (!thread_ || (member_ != 0 && queue_.empty())) return;
  if (device_.process_ends()) {  // with all its threads
    [[maybe_unused]] const auto* const kept =
        new (std::nothrow) std::shared_ptr<NcclThread>(thread_);
    return;
  }
  if (!closed_) order_abort();
  while (!thread_->is_gone()) {
    if (const std::string why = thread_->overdue(); !why.empty()) end_process(why);
    poll(nullptr, 0, 1);
  }
}

void NcclCommunicator::start(Operation& operation) {
  if (!queue_.push(operation) || closed_ || !gives_) return;
  try {
    if (!thread_)
      thread_ =
          std::make_shared<NcclThread>(peers_, device_, nccl_, name_, rank(), size(), limits_);
    HVD_CHECK(operation.kind != OperationKind::kSplit || member_ == 0,
              "the first one of a family is split");
    if (operation.kind == OperationKind::kSplit)
      operation.stage = static_cast<uint32_t>(thread_->next_member());
    thread_->give({&operation, needs_host(operation.kind) ? start_host_part(operation) : nullptr,
                   member_, rank(), size()});
  } catch (const std::exception& error) {
    gives_ = false;
    const int rank = peers_.world().rank;
    raise_trouble(peers_, TroubleReason::kEngineError,
                  rank_text(peers_, rank) + ": " + error.what(), std::span(&rank, 1));
  }
}

std::unique_ptr<NcclCommunicator> NcclCommunicator::take_split(const Operation& split,
                                                               Communicator& control) {
  auto made = std::make_unique<NcclCommunicator>(peers_, device_, nccl_, name_, control, limits_);
  made->thread_ = thread_;
  made->member_ = split.stage;
  return made;
}

std::shared_ptr<NcclThread::HostPart> NcclCommunicator::start_host_part(
    const Operation& operation) {
  const auto made = std::make_shared<NcclThread::HostPart>();
  NcclThread::HostPart& part = *made;
  part.operation.kind = operation.kind;
  part.operation.name = operation.name;
  part.operation.segment = operation.segment;
  part.operation.segment_bytes = operation.segment_bytes;
  part.operation.populate_bytes = operation.populate_bytes;
  if (operation.kind == OperationKind::kAllgather) {
    part.count = operation.input.count;
    part.counts.resize(static_cast<size_t>(size()));
    part.operation.result.type = DataType::kInt64;
    part.operation.input = {&part.count, 1, DataType::kInt64};
    part.operation.allocate = [&part](std::span<const uint64_t>) {
      return static_cast<void*>(part.counts.data());
    };
  }
  host_parts_.push_back(made);
  control_.start(part.operation);
  return made;
}

bool NcclCommunicator::progress() {
  if (!thread_ || device_.process_ends()) return false;
  if (const std::string why = thread_->overdue(); !why.empty()) end_process(why);
  const uint64_t news = thread_->news();
  bool moved = news != std::exchange(news_, news);
  if (moved) take_finished();
  while (!host_parts_.empty() &&
         host_parts_.front()->operation.outcome.load(kAcquire) != Outcome::kPending) {
    host_parts_.pop_front();
    thread_->wake();
    moved = true;
  }
  // The others do not leave any more.
  if (closed_ && !aborts_ && !is_gone() && peers_.block().trouble.load(kAcquire) != 0)
    order_abort();
  return moved;
}

void NcclCommunicator::take_finished() {
  for (const auto& [operation, outcome] : thread_->take_finished(member_)) {
    HVD_CHECK(operation == queue_.oldest(), "they are finished in the order of their start");
    queue_.resolve(outcome);
  }
}

// --- Ending.

void NcclCommunicator::close() {
  if (closed_) return;
  closed_ = true;
  fault_point("collective_closed");
  if (!thread_) return;
  const bool whole = queue_.empty() && peers_.block().trouble.load(kAcquire) == 0;
  if (whole && member_ != 0)
    left_ = true;
  else if (whole)
    thread_->end(NcclThread::End::kLeave);
  else
    order_abort();
}

void NcclCommunicator::order_abort() {
  aborts_ = true;
  thread_->end(NcclThread::End::kAbort, [this] { return program_before(); });
}

// What of the program's streams has to be done before what NCCL was called for.
std::vector<CUevent> NcclCommunicator::program_before() const {
  std::vector<CUevent> events;
  for (const Operation* one = queue_.oldest(); one != nullptr; one = one->next) {
    if (one->sequence > thread_->called(member_)) break;
    if (one->ready != nullptr) events.push_back(static_cast<CUevent>(one->ready));
  }
  return events;
}

// NCCL may go on touching this rank's memory and, by it, that of others: nothing can be thrown to a
// program that would go on. The others' failures say why it ended, and it is no reason of its own.
void NcclCommunicator::end_process(const std::string& why) {
  peers_.block()
      .rank(peers_.world().local_rank)
      .given_up.store(GivenUp::kAborts, std::memory_order_release);
  peers_.status_page().told.store(1, std::memory_order_relaxed);
  std::fprintf(stderr, "hvd: %s ends, since %s\n", rank_text(peers_, peers_.world().rank).c_str(),
               why.c_str());
  _exit(kExitStuck);
}

void NcclCommunicator::fail_rest() {
  if (thread_) take_finished();
  queue_.be_over();
  while (!queue_.empty()) queue_.resolve(Outcome::kFailedUndefined);
}

void NcclCommunicator::abort() noexcept {
  raise_trouble(peers_, TroubleReason::kAbort, "abort() was called");
}

// --- Looking.

// NCCL's thread rings; only an abort that does not end says nothing.
std::chrono::milliseconds NcclCommunicator::watch(std::vector<pollfd>&) const {
  return thread_ && thread_->aborts() ? kLookForAbort : std::chrono::milliseconds::max();
}

// For whom NCCL itself waits it does not say.
std::vector<int> NcclCommunicator::missing_ranks() const {
  if (idle() || !thread_) return {};
  if (thread_->doing() == NcclThread::Doing::kSharesIds) return thread_->missing();
  return host_parts_.empty() ? std::vector<int>{} : control_.missing_ranks();
}

// Of the oldest operation, once nothing of the program's own is before it on the device.
DeviceWait NcclCommunicator::device_wait() const {
  if (closed_ || !thread_ || (member_ != 0 && queue_.empty()) || device_.process_ends()) return {};
  switch (thread_->doing()) {
    case NcclThread::Doing::kSharesIds:
      return {"sharing NCCL's unique ids", 0, true, thread_->missing()};
    case NcclThread::Doing::kConnects:
      return {"connecting the ranks' GPUs", 0, true};
    case NcclThread::Doing::kRuns:
      break;
    case NcclThread::Doing::kNothing:
    case NcclThread::Doing::kGone:
      return {};
  }
  const Operation* oldest = queue_.oldest();
  if (oldest == nullptr || oldest->sequence > thread_->called(member_)) return {};
  if (oldest->ready != nullptr && !device_.is_done(static_cast<CUevent>(oldest->ready))) return {};
  return {describe(*oldest), oldest->sequence};
}

}  // namespace hvd
