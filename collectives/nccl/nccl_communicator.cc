// How it comes to be and how it ends; what it launches is in launch.cc.
#include "collectives/nccl/nccl_communicator.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "collectives/nccl/unique_ids.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/start_thread.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kFinalizeLimit = 5s, kAbortLimit = 5s;
constexpr int kLookAtAbortMs = 1;
constexpr int kExitStuck = 125;
constexpr std::chrono::milliseconds kLookAgain{1};  // a device has no descriptor to sleep on

}  // namespace

NcclCommunicator::NcclCommunicator(Peers& peers, CudaDevice& device, const NcclLibrary& nccl,
                                   std::string name, Communicator& control)
    : peers_(peers),
      block_(peers.block()),
      device_(device),
      nccl_(nccl),
      name_(std::move(name)),
      control_(control),
      me_(control.rank()),
      size_(control.size()),
      queue_(0) {}

NcclCommunicator::~NcclCommunicator() {
  if (abort_thread_.joinable()) return;  // it joins
  if (communicator_ == nullptr) return;
  nccl_.ncclCommAbort(communicator_);
}

// --- Moving.

bool NcclCommunicator::progress() {
  if (state_ == State::kGone || (failed_ && !closed_)) return false;
  try {
    return move();
  } catch (const std::exception& error) {  // also of who makes room for a result
    fail(error.what());
    return true;
  }
}

bool NcclCommunicator::move() {
  if (state_ == State::kAborts) return finish_abort();
  if (state_ == State::kFinalizes) return finalize();
  if (closed_) return false;
  const CudaDevice::Current current(device_);
  bool moved = complete();
  if ((next_ == nullptr && queue_.empty()) || !settled()) return moved;
  if (next_ != nullptr) moved |= (state_ == State::kReady ? launch() : connect()) == Step::kMoved;
  return moved;
}

// The epoch breaks; close() follows.
void NcclCommunicator::fail(const std::string& what) {
  if (state_ == State::kFinalizes) return begin_abort();
  failed_ = true;
  const int rank = peers_.world().rank;
  raise_trouble(peers_, TroubleReason::kEngineError, rank_text(peers_, rank) + ": " + what,
                std::span(&rank, 1));
}

// Is NCCL through with the last call, and well?
bool NcclCommunicator::settled() {
  if (communicator_ == nullptr) return true;
  ncclResult_t state = ncclSuccess;
  const ncclResult_t result = nccl_.ncclCommGetAsyncError(communicator_, &state);
  if (result != ncclSuccess) return went(result);
  if (state == ncclInProgress) return false;
  return went(state);
}

// Of a call: true if it is over, false if it is under way.
bool NcclCommunicator::went(ncclResult_t result) {
  under_way_ = result == ncclInProgress;
  if (result == ncclSuccess || under_way_) return !under_way_;
  throw Error(ErrorCode::kUnavailable,
              "NCCL failed in " + calling_ + ": " + nccl_.text_of(result, communicator_));
}

// With the first operation, so at the same place of `control` on all ranks.
void NcclCommunicator::start_sharing_ids() {
  const int ids = unique_ids_for(size_, nccl_.ncclCommInitRankScalable != nullptr);
  ids_.resize(static_cast<size_t>(ids));
  const bool makes = makes_unique_id(me_, size_, ids);
  calling_ = "making a unique id";
  if (makes) went(nccl_.ncclGetUniqueId(&own_id_));
  Operation& share = sharing_.operation;
  share.kind = OperationKind::kAllgather;
  share.name = "NCCL's unique ids";
  share.result.type = DataType::kUint8;
  share.input = {&own_id_, makes ? sizeof own_id_ : 0, DataType::kUint8};
  share.allocate = [this](std::span<const uint64_t>) { return static_cast<void*>(ids_.data()); };
  state_ = State::kSharesIds;
  control_.start(share);
}

NcclCommunicator::Step NcclCommunicator::connect() {
  if (state_ == State::kSharesIds) {
    if (!sharing_.is_done()) return Step::kWait;
    make_communicator();
  } else {
    state_ = State::kReady;
  }
  return Step::kMoved;
}

void NcclCommunicator::make_communicator() {
  fault_point("nccl_connect");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 1;  // the whole family is aborted together
  config.commName = name_.c_str();
  calling_ = "connecting the ranks' GPUs";
  state_ = State::kConnects;
  const auto ids = static_cast<int>(ids_.size());
  const ncclResult_t result =
      ids == 1
          ? nccl_.ncclCommInitRankConfig(&communicator_, size_, ids_[0], me_, &config)
          : nccl_.ncclCommInitRankScalable(&communicator_, size_, me_, ids, ids_.data(), &config);
  went(result);
}

// Of a part that failed nothing comes: the epoch is broken.
bool NcclCommunicator::HostPart::is_done() const {
  const Outcome outcome = operation.outcome.load(kAcquire);
  if (outcome == Outcome::kRefused) throw Error(operation.code, operation.error);
  return outcome == Outcome::kComplete;
}

// --- Ending.

void NcclCommunicator::close() {
  if (closed_) return;
  closed_ = true;
  fault_point("collective_closed");
  if (communicator_ == nullptr) {
    state_ = State::kGone;
    return;
  }
  if (!queue_.empty() || block_.trouble.load(kAcquire) != 0 || failed_ || under_way_)
    return begin_abort();
  calling_ = "leaving";
  state_ = State::kFinalizes;
  end_began_ = Clock::now();
  try {
    finalize();
  } catch (const Error&) {
    begin_abort();
  }
}

// In a whole epoch, with nothing under way.
bool NcclCommunicator::finalize() {
  const CudaDevice::Current current(device_);
  if (block_.trouble.load(kAcquire) != 0 || Clock::now() - end_began_ > kFinalizeLimit) {
    begin_abort();
    return true;
  }
  if (!settled()) return false;
  if (!std::exchange(finalized_, true)) {
    went(nccl_.ncclCommFinalize(communicator_));
    return true;
  }
  went(nccl_.ncclCommDestroy(std::exchange(communicator_, nullptr)));
  state_ = State::kGone;
  return true;
}

// Beside this thread the holder goes on answering the agent. What is still in the stream, behind
// the program's own work, comes to nothing there, but memory is the program's only then.
void NcclCommunicator::begin_abort() {
  fault_point("nccl_abort");
  state_ = State::kAborts;
  end_began_ = Clock::now();
  const auto end = [this] {
    nccl_.ncclCommAbort(communicator_);
    while (device_.is_busy()) poll(nullptr, 0, kLookAtAbortMs);
    aborted_.store(true, std::memory_order_release);
  };
  try {
    abort_thread_ =
        start_thread("the one that aborts NCCL", [end](const std::stop_token&) { end(); });
  } catch (const Error&) {
    end();
  }
}

bool NcclCommunicator::finish_abort() {
  if (aborted_.load(kAcquire)) {
    if (abort_thread_.joinable()) abort_thread_.join();
    communicator_ = nullptr;
    state_ = State::kGone;
    return true;
  }
  if (Clock::now() - end_began_ < kAbortLimit) return false;
  std::fprintf(stderr, "hvd: %s ends, since NCCL could not be aborted within 5 s\n",
               rank_text(peers_, peers_.world().rank).c_str());
  _exit(kExitStuck);
}

void NcclCommunicator::fail_rest() {
  queue_.be_over();
  next_ = nullptr;
  while (!queue_.empty()) queue_.resolve(Outcome::kFailedUndefined);
  events_.clear();
}

void NcclCommunicator::abort() noexcept {
  raise_trouble(peers_, TroubleReason::kAbort, "abort() was called");
}

// --- Looking.

bool NcclCommunicator::idle() const {
  const bool ends = closed_ && state_ != State::kGone;
  return queue_.empty() && !ends;
}

std::chrono::milliseconds NcclCommunicator::watch(std::vector<pollfd>&) const {
  return idle() || (failed_ && !closed_) ? std::chrono::milliseconds::max() : kLookAgain;
}

// For whom NCCL itself waits it does not say.
std::vector<int> NcclCommunicator::missing_ranks() const {
  const bool over_control = state_ == State::kSharesIds ||
                            (!host_parts_.empty() && host_parts_.front()->operation.outcome.load(
                                                         kAcquire) == Outcome::kPending);
  return over_control && !idle() ? control_.missing_ranks() : std::vector<int>{};
}

}  // namespace hvd
