// What a host's leader looks at now and then: who has left, who waits for whom and for too long.
#include <algorithm>
#include <set>
#include <utility>

#include "runtime/base/job_clock.h"
#include "runtime/engine/log_leader.h"
#include "runtime/engine/text_hash.h"

namespace hvd {
namespace {

using Kind = LogMessage::Kind;
using namespace std::chrono_literals;

// A leader that has nothing else to do answers at its next look, which is a second away at most.
constexpr auto kSilent = 5s;
// Sooner than who waits gives up being told.
constexpr auto kSilentInOverdue = 3s;
// Between two questions about what is overdue: an answer wakes rank 0, which would ask at once.
constexpr auto kAskAgain = 200ms;
// Of the time between two looks: for longer this process itself was stopped.
constexpr Clock::duration kBetweenLooks = 1500ms;

}  // namespace

// --- Questions between leaders: who is missing is known once all have answered.

void LogLeader::answer(uint32_t question) {
  tell_waits();
  tell_acted();
  links_->post(
      {.kind = Kind::kAnswer, .rank = static_cast<uint32_t>(host_.first), .number = question});
}

LogLeader::Question LogLeader::ask_everybody() {
  links_->post({.kind = Kind::kQuestion, .number = ++question_});
  links_->flush();
  return {question_, job_now(), {}};
}

TimePoint LogLeader::job_now() const {
  return JobClock::time(peers_.block().clock.load(std::memory_order_acquire), Clock::now());
}

std::vector<int> LogLeader::silent_leaders(uint32_t question) const {
  if (!coordinator_ || !links_ || question == 0) return {};
  std::vector<int> silent = links_->open_ranks();
  std::erase_if(silent, [&](int leader) {
    const auto found = answered_.find(leader);
    return found != answered_.end() && found->second >= question;
  });
  return silent;
}

// Of a machine that stands still others are not silent.
void LogLeader::count_silence() {
  const TimePoint now = job_now();
  for (Question* one : {&overdue_question_, &picture_question_})
    one->open_for += std::min(now - std::max(last_look_, one->asked_at), kBetweenLooks);
  last_look_ = now;
}

// --- Now and then.

void LogLeader::look() {
  if (!links_) {
    look_for_overdue();
    return;
  }
  look_for_left();
  serve();
  count_silence();
  if (!coordinator_) tell_waits(), tell_overdue();
  look_for_overdue();
  links_->flush();
  links_->look(Clock::now());
}

// The word of its leaving is read first: what it asked for before is passed on before.
void LogLeader::look_for_left() {
  for (int k = 1; k < host_.count; ++k) {
    if (told_left_[static_cast<size_t>(k)] ||
        peers_.block().rank(k).left.load(std::memory_order_acquire) == 0)
      continue;
    told_left_[static_cast<size_t>(k)] = true;
    hear(k);
    decide();
    links_->post({.kind = Kind::kLeft, .rank = static_cast<uint32_t>(host_.first + k)});
  }
}

// Of a rank of another host: this host's are told behind the entries that it took part in.
void LogLeader::note_left(int rank, int told_by) {
  if (coordinator_) {
    decide();
    links_->post({.kind = Kind::kLeft, .rank = static_cast<uint32_t>(rank)}, told_by);
    const HostRanks host = rank == told_by ? shape_.hosts[static_cast<size_t>(shape_.host_of(rank))]
                                           : HostRanks{rank, 1};
    for (int gone = host.first; gone < host.first + host.count; ++gone) {
      acted_[gone] = UINT64_MAX;
      waits_.erase(gone);
      for (auto& by_rank : overdue_) by_rank.erase(gone);
    }
  }
  left_elsewhere_ = rank;
  left_after_ = logged_ + entries_.size();
}

void LogLeader::leave() {
  if (!links_) return;
  serve();
  links_->post({.kind = Kind::kLeft, .rank = static_cast<uint32_t>(host_.first)});
  links_->finish_sending();
}

// What a rank waits for is told behind all that it had asked for by then, and taken back before
// what it asks for afterwards: so both together say on rank 0 what they say here.
void LogLeader::tell_waits() {
  for (int k = 0; k < host_.count; ++k) {
    const Wait wait = wait_of(host_.first + k);
    hear(k);
    if (wait_of(host_.first + k) == wait) tell_wait(k, wait);
  }
}

void LogLeader::tell_wait(int local_rank, const Wait& wait) {
  if (std::exchange(told_waits_[static_cast<size_t>(local_rank)], wait) == wait) return;
  links_->post({.kind = Kind::kWaits,
                .rank = static_cast<uint32_t>(host_.first + local_rank),
                .hash = wait.name,
                .value = wait.number,
                .text = wait.text});
}

void LogLeader::take_back_wait(int local_rank) {
  const RankWait told = told_waits_[static_cast<size_t>(local_rank)];
  if (told.number != 0 && wait_of(host_.first + local_rank) != told) tell_wait(local_rank, {});
}

void LogLeader::tell_acted() {
  for (int k = 0; k < host_.count; ++k) {
    const uint64_t acted = acted_on(host_.first + k);
    if (std::exchange(told_acted_[static_cast<size_t>(k)], acted) != acted)
      links_->post(
          {.kind = Kind::kActed, .rank = static_cast<uint32_t>(host_.first + k), .value = acted});
  }
}

void LogLeader::tell_overdue() {
  for (int k = 0; k < host_.count; ++k) {
    const LogWords& theirs = words_.of(k);
    for (uint32_t kind = 0; kind < LogWords::kOverdueKinds; ++kind) {
      const uint64_t what = theirs.overdue[kind].load(std::memory_order_acquire);
      if (std::exchange(told_overdue_[kind][static_cast<size_t>(k)], what) == what) continue;
      links_->post({.kind = Kind::kOverdue,
                    .rank = static_cast<uint32_t>(host_.first + k),
                    .number = kind,
                    .hash = what,
                    .value = theirs.overdue_ms.load(std::memory_order_relaxed)});
    }
  }
}

// True: something is overdue somewhere.
bool LogLeader::hear_overdue() {
  for (int k = links_ ? 0 : 1; k < host_.count; ++k) {
    const LogWords& theirs = words_.of(k);
    const uint64_t ms = theirs.overdue_ms.load(std::memory_order_relaxed);
    for (uint32_t kind = 0; kind < LogWords::kOverdueKinds; ++kind) {
      Overdue& heard = overdue_[kind][host_.first + k];
      const uint64_t what = theirs.overdue[kind].load(std::memory_order_acquire);
      if (heard.what != what) heard = {what, ms};
    }
  }
  return std::ranges::any_of(overdue_, [](const auto& by_rank) {
    return std::ranges::any_of(by_rank, [](const auto& one) { return one.second.what != 0; });
  });
}

// A rank has waited for longer than it wants to, and only rank 0 can say for whom.
void LogLeader::look_for_overdue() {
  if (!coordinator_ || !hear_overdue()) return;
  serve();  // what they had asked for by then; it may forget ranks: not while they are gone over
  ask_about_overdue();
  for (uint32_t kind = 0; kind < LogWords::kOverdueKinds; ++kind)
    for (auto& [rank, overdue] : overdue_[kind])
      if (overdue.what != 0 && end_overdue(kind, rank, overdue)) return;
}

// One question at a time, for all that has become overdue since the last one.
void LogLeader::ask_about_overdue() {
  if (!links_ || !everybody_answered(overdue_question_.number)) return;
  if (job_now() - overdue_question_.asked_at < kAskAgain) return;
  std::vector<Overdue*> unasked;
  for (auto& by_rank : overdue_)
    for (auto& [rank, overdue] : by_rank)
      if (overdue.what != 0 && overdue.question == 0) unasked.push_back(&overdue);
  if (unasked.empty()) return;
  overdue_question_ = ask_everybody();
  for (Overdue* overdue : unasked) overdue->question = overdue_question_.number;
}

// Once everybody has been heard since this became overdue. If it goes on, or is over, what was
// heard gets old, and everybody is asked once more before it is looked at again.
bool LogLeader::end_overdue(uint32_t kind, int rank, Overdue& overdue) {
  std::optional<WaitingName> waiting = overdue_wait(kind, rank, overdue.what);
  if (links_ && overdue.question != 0 && everybody_answered(overdue.question)) {
    if (!waiting || waiting->missing.empty()) overdue.question = 0;
  } else if (links_) {
    if (!waiting || overdue_question_.open_for < kSilentInOverdue) return false;
    waiting->missing = missing_in_silence(overdue, rank, waiting->missing);
  }
  if (!waiting || waiting->missing.empty()) return false;
  progress_.time_out(rank, std::chrono::milliseconds(overdue.ms), waiting->missing, waiting->name);
  return true;
}

// Of a host whose leader does not answer nobody can say who is missing: it is the leader. Others
// are if theirs has answered since this became overdue. `rank` does not wait for itself.
std::vector<int> LogLeader::missing_in_silence(const Overdue& overdue, int rank,
                                               const std::vector<int>& missing) const {
  const std::vector<int> silent = silent_leaders(overdue_question_.number);
  std::set<int> named;
  for (const int one : missing) {
    const int leader = shape_.hosts[static_cast<size_t>(shape_.host_of(one))].first;
    if (std::ranges::find(silent, leader) != silent.end())
      named.insert(leader);
    else if (overdue.question == overdue_question_.number)
      named.insert(one);
  }
  if (missing.empty()) named.insert(silent.begin(), silent.end());
  named.erase(rank);
  return {named.begin(), named.end()};
}

// As text, and who is missing in it as far as it is known; nothing: it is over.
std::optional<WaitingName> LogLeader::overdue_wait(uint32_t kind, int rank, uint64_t what) const {
  if (kind == LogWords::kOverdueCall) {
    Wait call = wait_of(rank);
    if (call.number != what) return std::nullopt;
    return WaitingName{std::move(call.text), what, not_in_call(what)};
  }
  std::optional<WaitingName> found;
  if (kind == LogWords::kOverdueEntry) found = coordinator_->waiting_entry(what, all_acted_on());
  if (kind == LogWords::kOverdueName)
    for (WaitingName& one : coordinator_->waiting())
      if (text_hash(one.name) == what) found = std::move(one);
  if (found) found->name = "\"" + found->name + "\"";
  return found;
}

// --- Who waits for what: a communicator between hosts hears only of some who has come.

LogLeader::Wait LogLeader::wait_of(int rank) const {
  const int local_rank = rank - host_.first;
  if (local_rank >= 0 && local_rank < host_.count) {
    const LogWords& theirs = words_.of(local_rank);
    const uint64_t name = theirs.waits_for.load(std::memory_order_acquire);
    const uint64_t number = theirs.waits_in.load(std::memory_order_acquire);
    return {{name, number}, links_ ? theirs.waits_text.load() : std::string()};
  }
  const auto said = waits_.find(rank);
  return said != waits_.end() ? said->second : Wait{};
}

std::vector<RankWait> LogLeader::all_waits() const {
  std::vector<RankWait> waits;
  for (int rank = 0; rank < shape_.size(); ++rank) waits.push_back(wait_of(rank));
  return waits;
}

std::vector<int> LogLeader::not_in_call(uint64_t number) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < shape_.size(); ++rank)
    if (wait_of(rank).number != number && acted_on(rank) != UINT64_MAX) ranks.push_back(rank);
  return ranks;
}

// Who has left calls and acts on nothing any more, and nobody waits for that: whoever needs it
// breaks off. Of a host whose leader has left nothing more is heard.
uint64_t LogLeader::acted_on(int rank) const {
  const int local_rank = rank - host_.first;
  if (local_rank >= 0 && local_rank < host_.count)
    return peers_.block().rank(local_rank).left.load(std::memory_order_acquire) != 0
               ? UINT64_MAX
               : words_.of(local_rank).read.load(std::memory_order_acquire);
  const auto said = acted_.find(rank);
  return said != acted_.end() ? said->second : 0;
}

std::vector<uint64_t> LogLeader::all_acted_on() const {
  std::vector<uint64_t> acted;
  for (int rank = 0; rank < shape_.size(); ++rank) acted.push_back(acted_on(rank));
  return acted;
}

// The oldest one that not all have acted on holds up whatever is behind it, if it did so in the
// last picture, too: what is heard of other hosts is older than what is known here.
void LogLeader::add_waiting_entry(std::vector<WaitingName>& waiting) {
  const std::vector<uint64_t> acted = all_acted_on();
  const uint64_t oldest = std::ranges::min(acted);
  const bool waits = oldest < coordinator_->entries();
  if (std::exchange(held_up_at_, waits ? oldest : UINT64_MAX) == oldest && waits)
    waiting.push_back(coordinator_->waiting_entry(oldest + 1, acted));
}

// While one does not answer, what is known of all hosts' ranks gets old. True: there is one.
bool LogLeader::add_silent_leaders(std::vector<WaitingName>& waiting) const {
  std::vector<int> silent = silent_leaders(picture_question_.number);
  if (silent.empty() || picture_question_.open_for < kSilent) return false;
  waiting.push_back(
      {"the question what its host waits for", picture_question_.number, std::move(silent)});
  return true;
}

void LogLeader::add_waiting_calls(std::vector<WaitingName>& waiting) const {
  std::map<uint64_t, std::string> calls;
  for (int rank = 0; rank < shape_.size(); ++rank)
    if (Wait wait = wait_of(rank); wait.number != 0 && !LogWords::is_in_log(wait.number))
      calls[wait.number] = std::move(wait.text);
  for (auto& [number, text] : calls)
    if (std::vector<int> missing = not_in_call(number); !missing.empty())
      waiting.push_back({std::move(text), number, std::move(missing)});
}

std::vector<WaitingName> LogLeader::look_at_waiting() {
  std::vector<RankWait> waits = all_waits();
  serve();
  count_silence();
  if (!coordinator_) return {};
  std::vector<WaitingName> waiting = coordinator_->waiting();
  look_for_crossed(waiting, std::move(waits));
  if (!links_) return waiting;
  if (const uint32_t asked = picture_question_.number; everybody_answered(asked)) {
    if (std::exchange(pictured_, asked) != asked) {
      waiting_there_.clear();
      add_waiting_calls(waiting_there_);
      add_waiting_entry(waiting_there_);
    }
    const bool any = std::ranges::any_of(all_waits(), [](auto& wait) { return wait.number != 0; });
    const bool all_acted = std::ranges::min(all_acted_on()) >= coordinator_->entries();
    if (any || !all_acted || !waiting.empty()) picture_question_ = ask_everybody();
  }
  if (!add_silent_leaders(waiting))
    waiting.insert(waiting.end(), waiting_there_.begin(), waiting_there_.end());
  return waiting;
}

// `waits` as they were before it was heard who has asked for what: those that still are count.
void LogLeader::look_for_crossed(const std::vector<WaitingName>& waiting,
                                 std::vector<RankWait> waits) {
  for (int rank = 0; rank < shape_.size(); ++rank)
    if (RankWait& wait = waits[static_cast<size_t>(rank)]; wait_of(rank) != wait) wait = {};
  const auto crossed = find_crossed_waits(waiting, waits);
  if (!crossed) return;
  raise_trouble(peers_, TroubleReason::kAbort,
                "\"" + crossed->name + "\" was called synchronously on " +
                    rank_text(peers_, crossed->caller) +
                    " and submitted asynchronously, or from another thread than init()'s, on " +
                    rank_text(peers_, crossed->submitter) + "; call it the same way on all ranks");
}

std::vector<int> LogLeader::missing(const std::string& name) const {
  if (!coordinator_) return {0};  // it was asked, and did not answer
  for (WaitingName& waiting : coordinator_->waiting())
    if (waiting.name == name) return waiting.missing;
  return {};
}

}  // namespace hvd
