// Submissions, the rank's reading of the log, and their completion.
#include "runtime/engine/negotiation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "collectives/describe.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/utf8.h"
#include "runtime/engine/operation_name.h"
#include "runtime/engine/outcome.h"
#include "runtime/engine/text_hash.h"

namespace hvd {

// A submitted operation. `error_` is written before `done_` and not touched afterwards.
class Negotiation::Pending final : public RepeatedWork {
 public:
  Pending(std::weak_ptr<Negotiation> owner, std::unique_ptr<Submission> submission)
      : owner_(std::move(owner)),
        submission_(std::move(submission)),
        name_(std::move(submission_->name)) {
    operation().name = name_;
    hash_ = hash_of(operation(), 0);
    lies_on_device_ = operation().on_device;
    apart_ = operation().apart;
  }

  // As made, but for what it has of its own by now.
  void renew() {
    Operation& again = operation();
    again.apart = apart_;
    again.error.clear();
    again.code = ErrorCode::kInvalidArgument;
    again.disagreed = false;
    again.outcome.store(Outcome::kPending, std::memory_order_relaxed);
    again.launched.store(false, std::memory_order_relaxed);
    entry_ = 0;
    error_ = nullptr;
    for (auto* flag : {&done_, &may_go_on_}) flag->store(false, std::memory_order_relaxed);
  }

  bool done() const override {
    if (done_.load(std::memory_order_acquire)) return true;
    const auto owner = owner_.lock();
    if (owner && owner->forked_.load(std::memory_order_relaxed)) throw_forked();
    return false;
  }

  void wait() override {
    if (!done() && !may_go_on_.load(std::memory_order_acquire))
      if (const auto owner = owner_.lock()) wait_with(*owner);
    if (!done() || !error_) return;
    const auto owner = owner_.lock();
    if (owner && !owner->forked_.load(std::memory_order_relaxed))
      tell(error_, owner->peers_.status_page());
    std::rethrow_exception(error_);
  }

  bool is_free() const override {
    return done_.load(std::memory_order_acquire) && may_go_on_.load(std::memory_order_acquire);
  }

  Operation& operation() { return submission_->operation; }
  const std::string& name() const { return name_; }
  uint64_t hash() const { return hash_; }
  uint64_t entry() const { return entry_; }
  void set_entry(uint64_t number) { entry_ = number; }
  // On a device, where its result will be in order: who waits may go on.
  bool may_go_on() const { return may_go_on_.load(std::memory_order_relaxed); }
  void let_go_on() { may_go_on_.store(true, std::memory_order_release); }

  // The last that is done with it: who submits it again may do so from then on.
  void finish(std::exception_ptr error) {
    error_ = std::move(error);
    // What was kept alive is let go before anybody hears of the end.
    if (!submission_->repeats) submission_.reset();
    const bool launched = may_go_on();
    done_.store(true, std::memory_order_release);
    if (!launched) let_go_on();
  }

  // Its places among the names under way and what is asked for, kept while it is not there.
  Names::node_type own_name;
  Asked::node_type own_asked;

 private:
  void wait_with(Negotiation& owner) {
    Awaited awaited;
    awaited.flag = &may_go_on_;
    awaited.what = [this] { return "\"" + name_ + "\""; };
    awaited.timeout = owner.collective_timeout_;
    awaited.on_device = lies_on_device_;
    std::optional<uint64_t> asked_at_look;
    awaited.missing = [&] { return owner.missing(name_, asked_at_look.value_or(0)); };
    awaited.reported_by_other = [&owner, this] { return owner.asked_.count(name_) != 0; };
    const bool tells = this_thread_number() == owner.init_thread_;
    if (tells) {
      awaited.on_sleep = [&owner, this](TimePoint now) {
        owner.say_awaiting(*this);
        owner.status_.waiting(now);
      };
    }
    awaited.told_by_other = [&] {
      if (owner.ask_who_is_missing(*this) && !asked_at_look)
        asked_at_look = owner.look_at_leader().looks();
      return asked_at_look.has_value();
    };
    owner.progress_.hold();
    if (tells && !may_go_on())  // with the token: until it is done the operation is there
      owner.status_.begin(Order::kLog, operation().sequence, operation(), hash_);
    owner.progress_.wait_and_leave(awaited);
    if (tells) owner.status_.end();
  }

  const std::weak_ptr<Negotiation> owner_;
  std::unique_ptr<Submission> submission_;
  const std::string name_;
  uint64_t hash_ = 0;
  bool lies_on_device_ = false, apart_ = false;
  uint64_t entry_ = 0;  // of the log, from 1; 0: not in it yet. With the token until it is done
  std::exception_ptr error_;
  std::atomic<bool> done_{false}, may_go_on_{false};
};

Negotiation::Negotiation(Progress& progress, Peers& peers, Communicator& communicator,
                         HostLogWords words, const WorldShape& shape, uint32_t links,
                         StatusWriter& status, const uint64_t& calls,
                         std::chrono::milliseconds collective_timeout)
    : progress_(progress),
      peers_(peers),
      communicator_(communicator),
      words_(std::move(words)),
      me_(peers.world().local_rank),
      one_host_(shape.one_host()),
      status_(status),
      calls_(calls),
      collective_timeout_(collective_timeout),
      leader_(me_ == 0 ? std::make_unique<LogLeader>(progress, peers, words_, shape, links)
                       : nullptr) {}

Negotiation::~Negotiation() = default;

std::shared_ptr<RepeatedWork> Negotiation::submit(std::unique_ptr<Submission> submission,
                                                  const std::shared_ptr<Negotiation>& self) {
  check_operation_name(submission->name);
  auto pending = std::make_shared<Pending>(self, std::move(submission));
  take_in(pending);
  return pending;
}

void Negotiation::submit_again(const std::shared_ptr<RepeatedWork>& work) {
  const auto pending = std::static_pointer_cast<Pending>(work);
  pending->renew();
  take_in(pending);
}

void Negotiation::take_in(const std::shared_ptr<Pending>& pending) {
  fault_point("engine_submit");
  {
    MutexLock lock(mutex_);
    if (under_way_.contains(pending->name()))
      throw Error(ErrorCode::kInvalidArgument, "\"" + pending->name() +
                                                   "\" is already under way on this rank, as an "
                                                   "operation of this kind or another; wait for "
                                                   "it first, or use another name");
    inbox_.push_back(pending);
    if (pending->own_name)
      under_way_.insert(std::move(pending->own_name));
    else
      under_way_.insert(pending->name());
    inbox_filled_.store(true, std::memory_order_release);
  }
  progress_.kick();
}

bool Negotiation::feed() {
  bool moved = inbox_filled_.load(std::memory_order_acquire) && take_inbox();
  if (!waiting()) {
    if (leader_) leader_->count_round();
    return moved;
  }
  moved |= announce();
  if (leader_) moved |= leader_->serve();
  moved |= read_log();
  moved |= complete_resolved();
  return moved;
}

bool Negotiation::take_inbox() {
  {
    MutexLock lock(mutex_);
    taken_.swap(inbox_);
    inbox_filled_.store(false, std::memory_order_relaxed);
  }
  const size_t count = taken_.size();
  waiting_ += count;
  for (const auto& pending : taken_) ask(pending);
  taken_.clear();
  if (over_ || !refusal_.empty()) finish_asked();
  return count != 0;
}

// A known description flips its bit, another one is described in full, and so is one that is apart.
void Negotiation::ask(const std::shared_ptr<Pending>& pending) {
  if (pending->own_asked) {
    pending->own_asked.mapped() = pending;
    asked_.insert(std::move(pending->own_asked));
  } else {
    asked_[pending->name()] = pending;
  }
  if (progress_.end().closed() || !refusal_.empty()) return;  // it fails, and what stands stays
  const auto known = known_.find(pending->name());
  if (known == known_.end() || known->second.hash != pending->hash() ||
      pending->operation().apart) {
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
        words_.of(0).consumed[static_cast<size_t>(me_)].load(std::memory_order_acquire);
    if (announced_ - consumed == LogWords::kAnnouncements) break;
    const std::shared_ptr<Pending> pending = std::move(to_announce_.front());
    to_announce_.pop_front();
    LogWords::Announcement& slot = mine().announcements[announced_ % LogWords::kAnnouncements];
    slot.hash = pending->hash();
    slot.apart = pending->operation().apart ? 1 : 0;
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
  // Nothing is started any more: what is decided from now on is decided without this rank's part.
  if (progress_.end().closed() || !refusal_.empty()) return false;
  const uint64_t logged = words_.of(0).logged.load(std::memory_order_acquire);
  if (read_ == logged) return false;
  while (read_ != logged) act_on(words_.of(0).log[read_++ % LogWords::kEntries]);
  mine().read.store(read_, std::memory_order_release);
  return true;
}

void Negotiation::act_on(const LogWords::Entry& entry) {
  fault_point("engine_start");
  const auto kind = static_cast<LogEntry::Kind>(entry.kind);
  const std::string_view name =
      kind == LogEntry::Kind::kRun ? std::string_view(name_of_id_.at(entry.id)) : entry.name;
  const auto found = asked_.find(name);
  if (found == asked_.end())
    throw Error(ErrorCode::kInternal,
                "the log runs \"" + std::string(name) + "\", which was not asked for");
  Asked::node_type place = asked_.extract(found);
  const std::shared_ptr<Pending> pending = std::move(place.mapped());
  pending->own_asked = std::move(place);
  pending->set_entry(read_);
  if (kind == LogEntry::Kind::kRefuse) {
    finish(pending, std::make_exception_ptr(Error(ErrorCode::kInvalidArgument, entry.text)));
    return;
  }
  if (kind == LogEntry::Kind::kBind) {
    if (name_of_id_.size() <= entry.id) name_of_id_.resize(entry.id + 1);
    name_of_id_[entry.id] = name;
    known_[name_of_id_[entry.id]] = {entry.id, pending->hash()};
  }
  pending->operation().apart = entry.apart != 0;
  const bool on_device = pending->operation().on_device;
  HVD_CHECK(!on_device || device_ != nullptr,
            "what lies on a device is submitted where there is one");
  (on_device ? started_on_device_ : started_).push_back(pending);
  (on_device ? *device_ : communicator_).start(pending->operation());
}

bool Negotiation::complete_resolved() {
  bool moved = complete_resolved(started_);
  if (!started_on_device_.empty()) {
    moved |= tell_of_launches();
    moved |= complete_resolved(started_on_device_);
  }
  return moved;
}

// They are launched in order, too.
bool Negotiation::tell_of_launches() {
  bool moved = false;
  for (const auto& pending : started_on_device_) {
    if (pending->may_go_on()) continue;
    if (!pending->operation().launched.load(std::memory_order_acquire)) break;
    let_go(*pending);
    pending->let_go_on();
    moved = true;
  }
  return moved;
}

// A communicator resolves in order, so only the oldest has to be looked at.
bool Negotiation::complete_resolved(std::deque<std::shared_ptr<Pending>>& started) {
  bool moved = false;
  while (!started.empty() && started.front()->operation().outcome.load(std::memory_order_acquire) !=
                                 Outcome::kPending) {
    const std::shared_ptr<Pending> pending = std::move(started.front());
    started.pop_front();
    // Failures are told when nobody touches this rank's memory any more.
    finish(pending, error_of(pending->operation(), progress_.end()));
    moved = true;
  }
  return moved;
}

// Nobody waits for it any more, and its name is free.
void Negotiation::let_go(Pending& pending) {
  if (awaiting_ == &pending) {  // before any thread can ask for this name anew
    awaiting_ = nullptr;
    say_done();
  }
  const auto take_back = [&](LogWords::OverdueKind kind, const auto& what) {
    auto& word = mine().overdue[kind];
    if (const uint64_t overdue = word.load(std::memory_order_relaxed);
        overdue != 0 && overdue == what())
      word.store(0, std::memory_order_release);
  };
  take_back(LogWords::kOverdueEntry, [&] { return pending.entry(); });
  take_back(LogWords::kOverdueName, [&] { return text_hash(pending.name()); });
  MutexLock lock(mutex_);
  pending.own_name = under_way_.extract(pending.name());
}

void Negotiation::finish(const std::shared_ptr<Pending>& pending, std::exception_ptr error) {
  --waiting_;
  if (!pending->may_go_on()) let_go(*pending);
  pending->finish(std::move(error));
}

// What never started: nobody has touched it.
void Negotiation::finish_asked() {
  for (auto& [name, pending] : std::exchange(asked_, {})) {
    if (over_) {
      pending->operation().outcome.store(Outcome::kFailedUntouched, std::memory_order_relaxed);
      finish(pending, error_of(pending->operation(), progress_.end()));
    } else {
      finish(pending, std::make_exception_ptr(Error(ErrorCode::kUnavailable,
                                                    "\"" + std::string(name) + "\": " + refusal_)));
    }
  }
  to_announce_.clear();
}

// Whoever reads this knows then what this rank had asked for before.
bool Negotiation::say_waiting(const RankWait& wait, const std::string& what) {
  if (inbox_filled_.load(std::memory_order_acquire) || !to_announce_.empty()) return false;
  LogWords& words = mine();
  words.waits_for.store(wait.name, std::memory_order_release);
  words.steps.store(wait.steps, std::memory_order_release);
  words.waits_text.store(what);
  words.waits_in.store(wait.number, std::memory_order_release);
  return true;
}

void Negotiation::say_awaiting(const Pending& pending) {
  if (std::exchange(awaiting_, &pending) == &pending) return;
  LogWords& words = mine();
  words.waits_for.store(text_hash(pending.name()), std::memory_order_release);
  words.waits_in.store(LogWords::kInLog | calls_, std::memory_order_release);
}

void Negotiation::say_done() {
  LogWords& words = mine();
  for (auto* word : {&words.waits_in, &words.overdue[LogWords::kOverdueCall]})
    word->store(0, std::memory_order_release);
}

bool Negotiation::ask_who_is_missing_in_call() {
  const uint64_t call = mine().waits_in.load(std::memory_order_relaxed);
  return !one_host_ && call != 0 && ask_coordinator(LogWords::kOverdueCall, call);
}

bool Negotiation::ask_who_is_missing_in_log() {
  uint64_t last = 0;
  for (const auto* started : {&started_, &started_on_device_})
    if (!started->empty()) last = std::max(last, started->back()->entry());
  return last != 0 && ask_who_has_not_acted(last);
}

bool Negotiation::ask_who_has_not_acted(uint64_t entry) {
  if (one_host_) return false;
  const uint64_t asking = mine().overdue[LogWords::kOverdueEntry].load(std::memory_order_relaxed);
  return asking != 0 || ask_coordinator(LogWords::kOverdueEntry, entry);
}

void Negotiation::refuse_waiting(const std::string& why) {
  refusal_ = why;
  finish_asked();
}

void Negotiation::epoch_over() {
  over_ = true;
  for (const auto* started : {&started_, &started_on_device_})
    for (const auto& pending : *started) {  // an error may have come between taking and starting
      Outcome pending_still = Outcome::kPending;
      pending->operation().outcome.compare_exchange_strong(pending_still,
                                                           Outcome::kFailedUntouched);
    }
  complete_resolved();
  finish_asked();
}

bool Negotiation::needs(int) {
  feed();  // what was logged before that rank left is no longer asked for
  return !asked_.empty();
}

// Also when nothing of this rank's own waits: then it may be the missing one.
void Negotiation::add_waiting(std::vector<WaitingName>& waiting) {
  if (!leader_ || progress_.end().closed()) return;
  for (WaitingName& name : leader_->look_at_waiting()) waiting.push_back(std::move(name));
}

// Past the timeout of a wait here. True: rank 0 will say who is missing. Several waits take turns:
// were they to replace each other at every look, each would be a new question there.
bool Negotiation::ask_who_is_missing(const Pending& pending) {
  if (leader_ && leader_->knows_all()) return false;
  if (asked_.count(pending.name()) == 0) return ask_who_has_not_acted(pending.entry());
  const uint64_t asking = mine().overdue[LogWords::kOverdueName].load(std::memory_order_relaxed);
  const auto is_asking = [&](const auto& one) { return text_hash(one.first) == asking; };
  return (asking != 0 && std::ranges::any_of(asked_, is_asking)) ||
         ask_coordinator(LogWords::kOverdueName, text_hash(pending.name()));
}

bool Negotiation::ask_coordinator(LogWords::OverdueKind kind, uint64_t overdue) {
  LogWords& words = mine();
  if (words.overdue[kind].load(std::memory_order_relaxed) == overdue) return true;
  words.overdue_ms.store(static_cast<uint64_t>(collective_timeout_.count()),
                         std::memory_order_relaxed);
  words.overdue[kind].store(overdue, std::memory_order_release);
  asked_at_look_[kind] = look_at_leader().looks();
  for (const Sleeper sleeper : {kCaller, kEngineThread}) peers_.ring(0, sleeper);
  return true;
}

void Negotiation::look() {
  look_at_leader();
  if (leader_) leader_->look();
  const uint32_t left = words_.of(0).left_elsewhere.load(std::memory_order_acquire);
  if (left != 0 && needs(-1)) {
    const int rank = static_cast<int>(left) - 1;
    raise_trouble(peers_, TroubleReason::kLeft,
                  rank_text(peers_, rank) + " called shutdown() while other ranks went on",
                  std::span(&rank, 1));
  }
}

std::vector<int> Negotiation::missing(const std::string& name, uint64_t asked_at_look) {
  if (asked_.count(name) == 0) {
    std::vector<int> seen = communicator_.missing_ranks();
    if (seen.empty() && device_ != nullptr) seen = device_->missing_ranks();
    return who_did_not_say(asked_at_look, std::move(seen));
  }
  return who_did_not_say(asked_at_look, leader_ ? leader_->missing(name) : std::vector<int>{0});
}

std::vector<int> Negotiation::missing_in_call(std::vector<int> seen) {
  return who_did_not_say(asked_at_look_[LogWords::kOverdueCall], std::move(seen));
}

const LeaderPulse& Negotiation::look_at_leader() {
  const LogWords& leader = words_.of(0);
  leader_pulse_.look(leader.looks.load(std::memory_order_acquire),
                     leader.rounds.load(std::memory_order_acquire),
                     progress_.job_time(Clock::now()));
  return leader_pulse_;
}

std::vector<int> Negotiation::who_did_not_say(uint64_t asked_at_look, std::vector<int> seen) {
  if (one_host_) return seen;
  if (leader_) return rank_0_or(std::move(seen));
  const int leader = peers_.world().rank - me_;
  return look_at_leader().who_did_not_say(leader, asked_at_look, std::move(seen));
}

}  // namespace hvd
