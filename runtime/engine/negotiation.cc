// Submissions, the rank's reading of the log, and their completion; the coordinator's half is in
// negotiation_coordinator.cc.
#include "runtime/engine/negotiation.h"

#include <algorithm>
#include <utility>

#include "collectives/shared_memory/describe.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/utf8.h"
#include "runtime/engine/outcome.h"
#include "runtime/engine/text_hash.h"

namespace hvd {

// A submitted operation. `error_` is written before `done_` and not touched afterwards.
class Negotiation::Pending final : public Work {
 public:
  Pending(std::weak_ptr<Negotiation> owner, std::unique_ptr<Submission> submission)
      : owner_(std::move(owner)), submission_(std::move(submission)), name_(submission_->name) {
    operation().name = submission_->name;
    hash_ = hash_of(operation(), 0);
  }

  bool done() const override {
    if (done_.load(std::memory_order_acquire)) return true;
    const auto owner = owner_.lock();
    if (owner && owner->forked_.load(std::memory_order_relaxed)) throw_forked();
    return false;
  }

  void wait() override {
    if (!done())
      if (const auto owner = owner_.lock()) wait_with(*owner);
    if (!error_) return;
    const auto owner = owner_.lock();
    if (owner && !owner->forked_.load(std::memory_order_relaxed))
      tell(error_, owner->peers_.status_page());
    std::rethrow_exception(error_);
  }

  Operation& operation() { return submission_->operation; }
  Submission& submission() { return *submission_; }
  const std::string& name() const { return name_; }
  uint64_t hash() const { return hash_; }

  void finish(std::exception_ptr error) {
    error_ = std::move(error);
    submission_.reset();  // what was kept alive is let go before anybody hears of the end
    done_.store(true, std::memory_order_release);
  }

 private:
  void wait_with(Negotiation& owner) {
    Awaited awaited;
    awaited.flag = &done_;
    awaited.what = [this] { return "\"" + name_ + "\""; };
    awaited.timeout = owner.collective_timeout_;
    awaited.missing = [&owner, this] { return owner.missing(name_); };
    const bool tells = std::this_thread::get_id() == owner.init_thread_;
    if (tells) awaited.on_sleep = [&owner](TimePoint now) { owner.status_.waiting(now); };
    bool overdue = false;
    awaited.told_by_other = [&] { return overdue |= owner.ask_who_is_missing(name_); };
    owner.progress_.hold();
    if (tells && !done())  // with the token: until it is done the operation is there
      owner.status_.begin(Order::kLog, operation().sequence, operation(), hash_);
    owner.progress_.wait_and_leave(awaited);
    if (tells) owner.status_.end();
    if (overdue) owner.mine().overdue.store(0, std::memory_order_release);
  }

  const std::weak_ptr<Negotiation> owner_;
  std::unique_ptr<Submission> submission_;
  const std::string name_;
  uint64_t hash_ = 0;
  std::exception_ptr error_;
  std::atomic<bool> done_{false};
};

Negotiation::Negotiation(Progress& progress, Peers& peers, Communicator& communicator,
                         std::shared_ptr<Segment> segment, uint64_t offset, StatusWriter& status,
                         std::chrono::milliseconds collective_timeout)
    : progress_(progress),
      peers_(peers),
      communicator_(communicator),
      segment_(std::move(segment)),
      offset_(offset),
      me_(peers.world().local_rank),
      size_(peers.world().local_size),
      first_rank_(peers.world().rank - me_),
      status_(status),
      collective_timeout_(collective_timeout) {
  if (me_ != 0) return;
  coordinator_ = std::make_unique<Coordinator>(size_, LogWords::kNamesMax, first_rank_);
  changes_seen_.resize(static_cast<size_t>(size_));
  consumed_.resize(static_cast<size_t>(size_));
}

Negotiation::~Negotiation() = default;

std::shared_ptr<Work> Negotiation::submit(std::unique_ptr<Submission> submission,
                                          const std::shared_ptr<Negotiation>& self) {
  const std::string& name = submission->name;
  if (name.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "an operation that is asynchronous, or not called by the thread that called "
                "init(), needs a name, by which ranks find each other's");
  if (name.find('\0') != std::string::npos)
    throw Error(ErrorCode::kInvalidArgument, "the name \"" + name.substr(0, name.find('\0')) +
                                                 "…\" has a byte of value 0 in it");
  if (name.size() >= LogWords::kNameBytes)
    throw Error(ErrorCode::kInvalidArgument,
                "the name \"" + std::string(head_of(name, 32)) + "…\" is " +
                    std::to_string(name.size()) + " bytes long; at most " +
                    std::to_string(LogWords::kNameBytes - 1) + " are possible");
  fault_point("engine_submit");
  auto pending = std::make_shared<Pending>(self, std::move(submission));
  {
    MutexLock lock(mutex_);
    if (!under_way_.insert(pending->name()).second)
      throw Error(ErrorCode::kInvalidArgument, "\"" + pending->name() +
                                                   "\" is already under way on this rank, as an "
                                                   "operation of this kind or another; wait for "
                                                   "it first, or use another name");
    inbox_.push_back(pending);
    inbox_filled_.store(true, std::memory_order_release);
  }
  progress_.kick();
  return pending;
}

bool Negotiation::feed() {
  bool moved = inbox_filled_.load(std::memory_order_acquire) && take_inbox();
  if (waiting_ == 0) return moved;
  moved |= announce();
  if (coordinator_) moved |= coordinate();
  moved |= read_log();
  moved |= complete_resolved();
  return moved;
}

bool Negotiation::take_inbox() {
  std::vector<std::shared_ptr<Pending>> taken;
  {
    MutexLock lock(mutex_);
    taken.swap(inbox_);
    inbox_filled_.store(false, std::memory_order_relaxed);
  }
  waiting_ += taken.size();
  for (const auto& pending : taken) ask(pending);
  if (over_ || !refusal_.empty()) finish_asked();
  return !taken.empty();
}

// A known description flips its bit, another one is described in full.
void Negotiation::ask(const std::shared_ptr<Pending>& pending) {
  asked_[pending->name()] = pending;
  if (progress_.end().closed()) return;  // fails when the epoch is over
  const auto known = known_.find(pending->name());
  if (known == known_.end() || known->second.hash != pending->hash()) {
    to_announce_.push_back(pending);
    return;
  }
  auto& word = mine().ready[known->second.id / 64];
  const uint64_t bit = uint64_t{1} << (known->second.id % 64);
  word.store(word.load(std::memory_order_relaxed) ^ bit, std::memory_order_release);
  say_changed();
}

bool Negotiation::announce() {
  if (progress_.end().closed()) return false;
  bool moved = false;
  while (!to_announce_.empty()) {
    const uint64_t consumed =
        words(0).consumed[static_cast<size_t>(me_)].load(std::memory_order_acquire);
    if (announced_ - consumed == LogWords::kAnnouncements) break;
    const std::shared_ptr<Pending> pending = std::move(to_announce_.front());
    to_announce_.pop_front();
    LogWords::Announcement& slot = mine().announcements[announced_ % LogWords::kAnnouncements];
    slot.hash = pending->hash();
    copy_text(slot.name, sizeof slot.name, pending->name());
    copy_text(slot.text, sizeof slot.text, describe(pending->operation()));
    fault_point("engine_announce");
    mine().announced.store(++announced_, std::memory_order_release);
    say_changed();
    moved = true;
  }
  return moved;
}

void Negotiation::say_changed() {
  mine().changes.store(++changes_, std::memory_order_release);
  ring_sleepers(peers_);
}

bool Negotiation::read_log() {
  if (progress_.end().closed()) return false;  // nothing is started any more
  const uint64_t logged = words(0).logged.load(std::memory_order_acquire);
  if (read_ == logged) return false;
  while (read_ != logged) act_on(words(0).log[read_++ % LogWords::kEntries]);
  mine().read.store(read_, std::memory_order_release);
  return true;
}

void Negotiation::act_on(const LogWords::Entry& entry) {
  fault_point("engine_start");
  const auto kind = static_cast<LogEntry::Kind>(entry.kind);
  const std::string name = kind == LogEntry::Kind::kRun ? name_of_id_.at(entry.id) : entry.name;
  const auto found = asked_.find(name);
  if (found == asked_.end())
    throw Error(ErrorCode::kInternal, "the log runs \"" + name + "\", which was not asked for");
  const std::shared_ptr<Pending> pending = std::move(found->second);
  asked_.erase(found);
  if (kind == LogEntry::Kind::kRefuse) {
    finish(pending, std::make_exception_ptr(Error(ErrorCode::kInvalidArgument, entry.text)));
    return;
  }
  if (kind == LogEntry::Kind::kBind) {
    if (name_of_id_.size() <= entry.id) name_of_id_.resize(entry.id + 1);
    name_of_id_[entry.id] = name;
    known_[name] = {entry.id, pending->hash()};
  }
  started_.push_back(pending);
  communicator_.start(pending->operation());
}

// A communicator resolves in order, so only the oldest has to be looked at.
bool Negotiation::complete_resolved() {
  bool moved = false;
  while (!started_.empty() && started_.front()->operation().outcome.load(
                                  std::memory_order_acquire) != Outcome::kPending) {
    const std::shared_ptr<Pending> pending = std::move(started_.front());
    started_.pop_front();
    // Failures are told when nobody touches this rank's memory any more.
    Submission& submission = pending->submission();
    std::exception_ptr error = error_of(submission.operation, progress_.end());
    if (!error && submission.on_complete) {
      try {
        submission.on_complete();
      } catch (...) {
        error = std::current_exception();
      }
    }
    finish(pending, error);
    moved = true;
  }
  return moved;
}

void Negotiation::finish(const std::shared_ptr<Pending>& pending, std::exception_ptr error) {
  --waiting_;
  {
    MutexLock lock(mutex_);
    under_way_.erase(pending->name());
  }
  pending->finish(std::move(error));
}

// What never started: nobody has touched it.
void Negotiation::finish_asked() {
  for (auto& [name, pending] : std::exchange(asked_, {})) {
    if (over_) {
      pending->operation().outcome.store(Outcome::kFailedUntouched, std::memory_order_relaxed);
      finish(pending, error_of(pending->operation(), progress_.end()));
    } else {
      finish(pending, std::make_exception_ptr(
                          Error(ErrorCode::kUnavailable, "\"" + name + "\": " + refusal_)));
    }
  }
  to_announce_.clear();
}

void Negotiation::set_calling(std::string_view name) {
  const uint64_t hash = name.empty() ? 0 : text_hash(name);
  mine().calling.store(hash, std::memory_order_release);
}

void Negotiation::refuse_waiting(const std::string& why) {
  refusal_ = why;
  finish_asked();
}

void Negotiation::epoch_over() {
  over_ = true;
  for (const auto& pending : started_) {  // an error may have come between taking and starting
    Outcome pending_still = Outcome::kPending;
    pending->operation().outcome.compare_exchange_strong(pending_still, Outcome::kFailedUntouched);
  }
  complete_resolved();
  finish_asked();
}

bool Negotiation::needs(int) {
  feed();  // what was logged before that rank left is no longer asked for
  return !asked_.empty();
}

}  // namespace hvd
