// How it comes to be and how it ends; what it launches is in launch.cc.
#include "collectives/nccl/nccl_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "collectives/describe.h"
#include "collectives/nccl/nccl_environment.h"
#include "collectives/nccl/unique_ids.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

constexpr auto kAcquire = std::memory_order_acquire;
constexpr int kExitStuck = 125;
constexpr std::chrono::milliseconds kLookAgain{1};  // a device has no descriptor to sleep on
// Each launch is made by a thread of NCCL's own (src/group.cc), in some tens of microseconds where
// the ranks are connected: a sleep before the next one would be most of its time.
constexpr std::chrono::microseconds kLaunchMost{500};

// To NCCL's own words (its src/init.cc); short, since of a reason other ranks get 255 bytes.
std::string with_advice(const std::string& text) {
  const bool shared = text.find("Duplicate GPU") != std::string::npos;
  return shared ? text + "; hvdrun --share-gpu lets ranks share one" : text;
}

// A call that failed as it does where another rank's process has ended (nccl.h, and the user
// guide's "Errors": a broken connection is either).
struct LostPeer : Error {
  using Error::Error;
};

bool may_be_lost_peer(ncclResult_t result) {
  return result == ncclRemoteError || result == ncclSystemError;
}

}  // namespace

NcclCommunicator::NcclCommunicator(Peers& peers, CudaDevice& device, const NcclLibrary& nccl,
                                   std::string name, Communicator& control,
                                   const NcclLimits& limits)
    : peers_(peers),
      block_(peers.block()),
      device_(device),
      nccl_(nccl),
      name_(std::move(name)),
      control_(control),
      me_(control.rank()),
      size_(control.size()),
      limits_(limits),
      queue_(0),
      windows_(nccl) {}

NcclCommunicator::~NcclCommunicator() {
  if (communicator_ != nullptr && !aborter_)
    aborter_.emplace(nccl_, device_, communicator_, limits_);
  if (aborter_ && !aborter_->wait()) end_process(aborter_->overdue());
}

// --- Moving.

bool NcclCommunicator::progress() {
  if (state_ == State::kGone || (failed_ && !closed_)) return false;
  try {
    return move();
  } catch (const std::exception& error) {  // also of who makes room for a result
    const auto* known = dynamic_cast<const Error*>(&error);
    if (known != nullptr && is_registering()) {
      spoil(*known);
    } else if (dynamic_cast<const LostPeer*>(&error) != nullptr && state_ != State::kFinalizes) {
      suspicion_ = error.what();
      suspected_.begin(Clock::now());
    } else {
      fail(error.what());
    }
    return true;
  }
}

bool NcclCommunicator::move() {
  if (state_ == State::kAborts) return finish_abort();
  if (state_ == State::kFinalizes) return finalize();
  if (closed_ || suspects_death()) return false;
  const CudaDevice::Current current(device_);
  bool moved = complete();
  if (next_ == nullptr && queue_.empty()) return moved;
  if (!spoilt_.empty()) {
    if (queue_.oldest() != next_) expect_soon("what was launched before: " + spoilt_);
    if (next_ == nullptr) return moved;
    if (next_->kind != OperationKind::kReconnect) throw Error(ErrorCode::kUnavailable, spoilt_);
  } else if (!settled()) {
    if (is_registering()) expect_soon(calling_ + ", where another rank has failed or is slow");
    return moved;
  }
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

// Whose word breaks the epoch; without one this rank does.
bool NcclCommunicator::suspects_death() {
  if (suspicion_.empty()) return false;
  const Clock::duration waited = suspected_.look(Clock::now());
  if (block_.trouble.load(kAcquire) == 0 && waited > limits_.word_of_death) fail(suspicion_);
  return true;
}

bool NcclCommunicator::is_registering() const {
  return state_ == State::kReady && next_ != nullptr && called_ &&
         next_->kind == OperationKind::kRegister;
}

void NcclCommunicator::spoil(const Error& error) {
  spoilt_ = error.what();
  expected_.begin(Clock::now());
  refuse(*next_, error.code(), error.what());
}

// Called at every look for as long as it is waited for.
void NcclCommunicator::expect_soon(const std::string& what) {
  if (expected_.look(Clock::now()) > limits_.registering)
    throw Error(
        ErrorCode::kTimeout,
        "NCCL has waited " + std::to_string(limits_.registering.count()) + " ms in " + what);
}

// Is NCCL through with the last call, and well?
bool NcclCommunicator::settled() {
  if (communicator_ == nullptr) return true;
  ncclResult_t state = ncclSuccess;
  check(nccl_.ncclCommGetAsyncError(communicator_, &state));
  under_way_ = state == ncclInProgress;
  check(state);
  return !under_way_;
}

// Of a call: true if it is over, false if it is under way. Its result does not tell which:
// ncclCommWindowRegister() has succeeded while NCCL's thread is at it (src/dev_runtime.cc of 2.28).
bool NcclCommunicator::went(ncclResult_t result) {
  check(result);
  return settled();
}

void NcclCommunicator::check(ncclResult_t result) const {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const Error failure = failure_in(calling_, result);
  if (may_be_lost_peer(result)) throw LostPeer(failure.code(), failure.what());
  throw failure;
}

Error NcclCommunicator::failure_in(const std::string& call, ncclResult_t result) const {
  return {ErrorCode::kUnavailable,
          "NCCL failed in " + call + ": " + with_advice(nccl_.text_of(result, communicator_))};
}

// With the first operation, which all ranks have submitted, and with each that connects anew.
void NcclCommunicator::start_sharing_ids() {
  const int ids =
      unique_ids_for(size_, nccl_.ncclCommInitRankScalable != nullptr, limits_.ranks_per_unique_id);
  const bool makes = makes_unique_id(me_, size_, ids);
  ncclUniqueId own{};
  const CudaDevice::Current current(device_);
  if (const ncclResult_t result = makes ? nccl_.ncclGetUniqueId(&own) : ncclSuccess;
      result != ncclSuccess)
    throw failure_in("making a unique id", result);
  check_nccl_environment();
  ids_.emplace(peers_.store(), name_ + "/" + std::to_string(++meetings_), me_, size_, ids, own);
}

NcclCommunicator::Step NcclCommunicator::connect() {
  if (state_ == State::kSharesIds) {
    if (!ids_->have_come()) return Step::kWait;
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
  std::vector<ncclUniqueId>& ids = ids_->all();
  const auto count = static_cast<int>(ids.size());
  const ncclResult_t result =
      count == 1
          ? nccl_.ncclCommInitRankConfig(&communicator_, size_, ids[0], me_, &config)
          : nccl_.ncclCommInitRankScalable(&communicator_, size_, me_, count, ids.data(), &config);
  check_nccl_environment();  // of ranks that make no id this has been the first look
  went(result);
}

// --- Ending.

void NcclCommunicator::close() {
  if (closed_) return;
  closed_ = true;
  fault_point("collective_closed");
  if (state_ == State::kAborts) return;
  if (communicator_ == nullptr) {
    state_ = State::kGone;
    return;
  }
  if (!queue_.empty() || block_.trouble.load(kAcquire) != 0 || failed_ || under_way_ ||
      !suspicion_.empty() || !spoilt_.empty())
    return begin_abort();
  calling_ = "leaving";
  state_ = State::kFinalizes;
  leaves_.begin(Clock::now());
  try {
    finalize();
  } catch (const Error&) {
    begin_abort();
  }
}

// In a whole epoch, with nothing under way.
bool NcclCommunicator::finalize() {
  const CudaDevice::Current current(device_);
  if (block_.trouble.load(kAcquire) != 0 || leaves_.look(Clock::now()) > limits_.leave) {
    begin_abort();
    return true;
  }
  if (!settled()) return false;
  if (!windows_.empty()) {
    went(windows_.remove_last(communicator_));
    return true;
  }
  if (!std::exchange(finalized_, true)) {
    went(nccl_.ncclCommFinalize(communicator_));
    return true;
  }
  went(nccl_.ncclCommDestroy(std::exchange(communicator_, nullptr)));
  state_ = State::kGone;
  return true;
}

void NcclCommunicator::begin_abort() {
  fault_point("nccl_abort");
  state_ = State::kAborts;
  std::vector<CUevent> program;
  for (const Operation* one = queue_.oldest(); one != nullptr; one = one->next) {
    if (one == next_ && !called_) break;
    if (one->ready != nullptr) program.push_back(static_cast<CUevent>(one->ready));
    if (one == next_) break;
  }
  aborter_.emplace(nccl_, device_, communicator_, limits_, std::move(program));
}

bool NcclCommunicator::finish_abort() {
  if (const std::string why = aborter_->overdue(); !why.empty()) end_process(why);
  if (!aborter_->is_over()) return false;
  aborter_.reset();
  communicator_ = nullptr;
  windows_.forget();
  spoilt_.clear();
  under_way_ = false;
  state_ = renews_ && !closed_ ? State::kSharesIds : State::kGone;
  return true;
}

// NCCL may go on touching this rank's memory and, by it, that of others: nothing can be thrown to a
// program that would go on. The others' failures say why it ended, and it is no reason of its own.
void NcclCommunicator::end_process(const std::string& why) {
  block_.rank(peers_.world().local_rank)
      .given_up.store(GivenUp::kAborts, std::memory_order_release);
  peers_.status_page().told.store(1, std::memory_order_relaxed);
  std::fprintf(stderr, "hvd: %s ends, since %s\n", rank_text(peers_, peers_.world().rank).c_str(),
               why.c_str());
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
  if (idle() || (failed_ && !closed_)) return std::chrono::milliseconds::max();
  return launches_now() ? std::chrono::milliseconds::zero() : kLookAgain;
}

bool NcclCommunicator::launches_now() const {
  return state_ == State::kReady && called_ && under_way_ && !is_registering() &&
         Clock::now() - called_at_ < kLaunchMost;
}

// For the first communicator, or for the next one.
bool NcclCommunicator::shares_ids() const {
  const bool renews = state_ == State::kReady && next_ != nullptr && !called_ &&
                      next_->kind == OperationKind::kReconnect;
  return !closed_ && ids_ && (state_ == State::kSharesIds || renews);
}

// For whom NCCL itself waits it does not say.
std::vector<int> NcclCommunicator::missing_ranks() const {
  if (shares_ids()) return ids_->missing();
  const bool over_control = !host_parts_.empty() && host_parts_.front()->operation.outcome.load(
                                                        kAcquire) == Outcome::kPending;
  return over_control && !idle() ? control_.missing_ranks() : std::vector<int>{};
}

// Of the oldest operation, once nothing of the program's own is before it on the device.
DeviceWait NcclCommunicator::device_wait() const {
  if (closed_ || failed_) return {};
  if (shares_ids()) return {"sharing NCCL's unique ids", 0, true, ids_->missing()};
  if (state_ == State::kConnects) return {"connecting the ranks' GPUs", 0, true};
  const Operation* oldest = queue_.oldest();
  if (state_ != State::kReady || oldest == nullptr || (oldest == next_ && !called_)) return {};
  if (oldest->ready != nullptr && !device_.is_done(static_cast<CUevent>(oldest->ready))) return {};
  return {describe(*oldest), oldest->sequence};
}

}  // namespace hvd
