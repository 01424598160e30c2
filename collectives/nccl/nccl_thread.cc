// How it is given work, connects and ends; what it launches is in launch.cc.
#include "collectives/nccl/nccl_thread.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <mutex>
#include <utility>

#include "collectives/nccl/nccl_environment.h"
#include "collectives/nccl/unique_ids.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/start_thread.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;
// NCCL and devices have nothing to sleep on. Each launch is made by a thread of NCCL's own
// (src/group.cc since 2.23), in some tens of microseconds where the ranks are connected.
constexpr std::chrono::microseconds kLookAgain{1000}, kLookForLaunch{20}, kLaunchMost{500};
constexpr std::chrono::microseconds kLookSeldom{5000}, kLongSince{50'000};  // a long backward pass
constexpr unsigned long kTimerSlackNs = 1'000;  // the kernel's 50 us are more than most launches

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

NcclThread::NcclThread(Peers& peers, CudaDevice& device, const NcclLibrary& nccl, std::string name,
                       int me, int size, const NcclLimits& limits)
    : peers_(peers),
      block_(peers.block()),
      device_(device),
      nccl_(nccl),
      name_(std::move(name)),
      me_(me),
      size_(size),
      limits_(limits),
      aborter_(nccl, device, limits),
      thread_(start_silent_thread("NCCL's", [this](const std::stop_token&) { run(); })) {}

// --- The holder's.

void NcclThread::give(Given given) {
  {
    MutexLock lock(mutex_);
    given_.push_back(std::move(given));
  }
  wake();
}

void NcclThread::wake() {
  {
    MutexLock lock(mutex_);
    woken_ = true;
  }
  wake_.notify_one();
}

std::vector<NcclThread::Finished> NcclThread::take_finished(size_t member) {
  MutexLock lock(mutex_);
  return std::exchange(finished_[member], {});
}

void NcclThread::end(End how, const std::function<std::vector<CUevent>()>& program) {
  if (how == End::kAbort) {
    {
      MutexLock lock(mutex_);
      closing_ = true;
    }
    aborter_.begin(program());
  } else {
    aborter_.expect_leave();
  }
  {
    MutexLock lock(mutex_);
    if (ordered_ != End::kAbort) ordered_ = how;
  }
  wake();
}

uint64_t NcclThread::called(size_t member) const {
  MutexLock lock(mutex_);
  const auto found = called_for_.find(member);
  return found == called_for_.end() ? 0 : found->second;
}

std::vector<int> NcclThread::missing() const {
  MutexLock lock(mutex_);
  return ids_ ? ids_->missing() : std::vector<int>{};
}

// --- Moving.

void NcclThread::run() {
  pthread_setname_np(pthread_self(), "hvd-nccl");
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0);
  while (state_ != State::kGone) {
    take_given();
    const bool moved = step();
    tell_news();
    if (moved)
      moved_at_ = Clock::now();
    else
      sleep();
  }
  aborter_.be_over();
  be(Doing::kGone);
  tell_news();
}

void NcclThread::be(Doing doing) {
  doing_.store(doing, kRelease);
  news_to_tell_ = News::kForAll;
}

// What is launched who waits for it has to hear of; all else the engine's thread, too.
void NcclThread::tell_news() {
  const News news = std::exchange(news_to_tell_, News::kNone);
  if (news == News::kNone) return;
  news_.fetch_add(1, kRelease);
  ring_own_sleepers(peers_, news == News::kForAll);
}

void NcclThread::take_given() {
  std::deque<Given> given;
  {
    MutexLock lock(mutex_);
    woken_ = false;
    given = std::exchange(given_, {});
    end_ = ordered_;
  }
  for (Given& one : given) {
    try {
      if (failed_) continue;
      if (state_ == State::kUnmade || one.operation->kind == OperationKind::kReconnect)
        start_sharing_ids();
      if (state_ == State::kUnmade) state_ = State::kSharesIds;
    } catch (const std::exception& error) {
      fail(error.what());
    }
    to_launch_.push_back(std::move(one));
  }
}

bool NcclThread::launches_now() const {
  return state_ == State::kReady && called_ && under_way_ && !is_registering() &&
         Clock::now() - called_at_ < kLaunchMost;
}

// The analysis does not follow a wait's lock.
void NcclThread::sleep() NO_THREAD_SAFETY_ANALYSIS {
  const bool idle = (launched_.empty() && to_launch_.empty() && !under_way_ && end_ == End::kNone &&
                     suspicion_.empty()) ||
                    (failed_ && end_ == End::kNone) || device_.process_ends();
  std::unique_lock<Mutex> lock(mutex_);
  const auto woken = [this]() NO_THREAD_SAFETY_ANALYSIS { return woken_; };
  if (idle) return wake_.wait(lock, woken);
  const bool long_since = Clock::now() - moved_at_ > kLongSince;
  wake_.wait_for(lock,
                 launches_now() ? kLookForLaunch
                 : long_since   ? kLookSeldom
                                : kLookAgain,
                 woken);
}

bool NcclThread::step() {
  if (device_.process_ends() || (failed_ && end_ == End::kNone)) return false;
  try {
    const CudaDevice::Current current(device_);
    return move();
  } catch (const std::exception& error) {  // also of who makes room for a result
    const auto* known = dynamic_cast<const Error*>(&error);
    if (end_ != End::kNone) {
      abort();
    } else if (known != nullptr && is_registering()) {
      spoil(*known);
    } else if (dynamic_cast<const LostPeer*>(&error) != nullptr) {
      suspicion_ = error.what();
      suspected_.begin(Clock::now());
    } else {
      fail(error.what());
    }
    return true;
  }
}

bool NcclThread::move() {
  if (end_ == End::kAbort) return abort(), true;
  if (end_ == End::kLeave) return leave();
  if (suspects_death()) return false;
  bool moved = complete();
  if (to_launch_.empty() && launched_.empty()) return moved;
  if (!spoilt_.empty()) {
    if (!launched_.empty()) expect_soon("what was launched before: " + spoilt_);
    if (to_launch_.empty()) return moved;
    if (next().kind != OperationKind::kReconnect) throw Error(ErrorCode::kUnavailable, spoilt_);
  } else if (!settled()) {
    if (is_registering()) expect_soon(calling_ + ", where another rank has failed or is slow");
    return moved;
  }
  if (to_launch_.empty()) return moved;
  return (state_ == State::kReady ? launch() : connect()) == Step::kMoved || moved;
}

// What the device has done, the oldest first.
bool NcclThread::complete() {
  bool moved = false;
  for (; !launched_.empty(); launched_.pop_front(), moved = true) {
    const Launched& one = launched_.front();
    if (!one.refused && !device_.is_done(one.done)) break;
    news_to_tell_ = News::kForAll;
    MutexLock lock(mutex_);
    finished_[one.member].push_back(
        {one.operation, one.refused ? Outcome::kRefused : Outcome::kComplete});
  }
  return moved;
}

// The epoch breaks; the end is ordered then.
void NcclThread::fail(const std::string& what) {
  if (std::exchange(failed_, true)) return;
  be(Doing::kNothing);
  const int rank = peers_.world().rank;
  raise_trouble(peers_, TroubleReason::kEngineError, rank_text(peers_, rank) + ": " + what,
                std::span(&rank, 1));
}

// Whose word breaks the epoch; without one this rank does.
bool NcclThread::suspects_death() {
  if (suspicion_.empty()) return false;
  const Clock::duration waited = suspected_.look(Clock::now());
  if (block_.trouble.load(kAcquire) == 0 && waited > limits_.word_of_death) fail(suspicion_);
  return true;
}

bool NcclThread::is_registering() const {
  return state_ == State::kReady && called_ && next().kind == OperationKind::kRegister;
}

void NcclThread::spoil(const Error& error) {
  spoilt_ = error.what();
  expected_.begin(Clock::now());
  refuse(next(), error.code(), error.what());
}

// Called at every look for as long as it is waited for.
void NcclThread::expect_soon(const std::string& what) {
  if (expected_.look(Clock::now()) > limits_.registering)
    throw Error(
        ErrorCode::kTimeout,
        "NCCL has waited " + std::to_string(limits_.registering.count()) + " ms in " + what);
}

// --- Calls.

void NcclThread::begin_call(std::string what, size_t member) {
  calling_ = std::move(what);
  called_on_ = member;
  said_before_ = nccl_.last_words(called_on());
}

// Is NCCL through with the last call, and well? A failure may be any member's. While the first one
// is at it NCCL may be about to write a child.
bool NcclThread::settled() {
  under_way_ = false;
  for (const Member& one : members_) {
    if (under_way_ || one.communicator == nullptr) continue;
    ncclResult_t state = ncclSuccess;
    check(nccl_.ncclCommGetAsyncError(one.communicator, &state));
    under_way_ = state == ncclInProgress;
    check(state);
  }
  return !under_way_;
}

// Of a call: true if it is over, false if it is under way. Its result does not tell which:
// ncclCommWindowRegister() has succeeded while NCCL's thread is at it (src/dev_runtime.cc of 2.28).
bool NcclThread::went(ncclResult_t result) {
  check(result);
  return settled();
}

void NcclThread::check(ncclResult_t result) const {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const Error failure = failure_in(calling_, result);
  if (may_be_lost_peer(result)) throw LostPeer(failure.code(), failure.what());
  throw failure;
}

Error NcclThread::failure_in(const std::string& call, ncclResult_t result) const {
  return {ErrorCode::kUnavailable,
          "NCCL failed in " + call + ": " +
              with_advice(nccl_.text_of(result, called_on(), said_before_))};
}

// --- Connecting.

// With the first operation, which all ranks have submitted, and with each that connects anew.
void NcclThread::start_sharing_ids() {
  const int ids =
      unique_ids_for(size_, nccl_.ncclCommInitRankScalable != nullptr, limits_.ranks_per_unique_id);
  const bool makes = makes_unique_id(me_, size_, ids);
  ncclUniqueId own{};
  const CudaDevice::Current current(device_);
  begin_call("making a unique id", 0);
  if (const ncclResult_t result = makes ? nccl_.ncclGetUniqueId(&own) : ncclSuccess;
      result != ncclSuccess)
    throw failure_in(calling_, result);
  check_nccl_environment();
  MutexLock lock(mutex_);
  ids_.emplace(peers_.store(), name_ + "/" + std::to_string(++meetings_), me_, size_, ids, own);
}

NcclThread::Step NcclThread::connect() {
  if (state_ == State::kConnects) {
    state_ = State::kReady;
    be(Doing::kRuns);
    return Step::kMoved;
  }
  if (doing() != Doing::kSharesIds) be(Doing::kSharesIds);
  {
    MutexLock lock(mutex_);
    if (!ids_->have_come()) return Step::kWait;
  }
  make_communicator();
  return Step::kMoved;
}

void NcclThread::make_communicator() {
  fault_point("nccl_connect");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 1;
  config.commName = name_.c_str();
  members_.emplace_back(nccl_);
  begin_call("connecting the ranks' GPUs", 0);
  state_ = State::kConnects;
  be(Doing::kConnects);
  std::vector<ncclUniqueId> ids;
  {
    MutexLock lock(mutex_);
    ids = ids_->all();
  }
  const auto count = static_cast<int>(ids.size());
  const ncclResult_t result =
      count == 1
          ? nccl_.ncclCommInitRankConfig(&members_[0].communicator, size_, ids[0], me_, &config)
          : nccl_.ncclCommInitRankScalable(&members_[0].communicator, size_, me_, count, ids.data(),
                                           &config);
  check_nccl_environment();  // of ranks that make no id this has been the first look
  went(result);
}

// --- Ending.

// In a whole epoch, with nothing under way; else by an abort.
bool NcclThread::leave() {
  const bool whole = block_.trouble.load(kAcquire) == 0;
  if (state_ != State::kFinalizes) {
    if (members_.empty()) {
      state_ = State::kGone;
      return true;
    }
    if (!whole || failed_ || under_way_ || !suspicion_.empty() || !spoilt_.empty())
      throw Error(ErrorCode::kUnavailable, "nothing is left by all ranks now");
    begin_call("leaving", 0);
    state_ = State::kFinalizes;
    leaves_.begin(Clock::now());
  }
  if (!whole || leaves_.look(Clock::now()) > limits_.leave)
    throw Error(ErrorCode::kTimeout, "the other ranks do not leave");
  return finalize();
}

// The youngest member first.
bool NcclThread::finalize() {
  if (!settled()) return false;
  Member& last = members_.back();
  if (last.communicator == nullptr) {
    members_.pop_back();
    if (members_.empty()) state_ = State::kGone;
  } else if (!last.windows.empty()) {
    went(last.windows.remove_last(last.communicator));
  } else if (!std::exchange(last.finalized, true)) {
    went(nccl_.ncclCommFinalize(last.communicator));
  } else {
    went(nccl_.ncclCommDestroy(std::exchange(last.communicator, nullptr)));
  }
  return true;
}

// Then it is gone or, to connect anew, waits for unique ids. Children first, since they use what is
// the first one's; one that is being made NCCL gives out as it ends (src/init.cc,
// ncclCommInitRankFunc).
void NcclThread::abort() {
  fault_point("nccl_abort");
  aborter_.begin(std::nullopt);  // unless it is begun
  news_to_tell_ = News::kForAll;
  tell_news();  // so that somebody looks whether it takes too long
  const bool splits = called_ && under_way_ && next().kind == OperationKind::kSplit;
  std::vector<ncclComm_t> communicators;
  for (auto one = members_.rbegin() + (splits ? 1 : 0); one != members_.rend(); ++one)
    if (one->communicator != nullptr) communicators.push_back(one->communicator);
  aborter_.run(communicators, splits ? &members_.back().communicator : nullptr);
  members_.clear();
  spoilt_.clear();
  under_way_ = false;
  state_ = end_ == End::kNone ? State::kSharesIds : State::kGone;
}

}  // namespace hvd
