// What a host's leader looks at now and then: who has left, who waits for whom and for too long.
#include <algorithm>
#include <utility>

#include "runtime/engine/log_leader.h"
#include "runtime/engine/text_hash.h"

namespace hvd {
namespace {

using Kind = LogMessage::Kind;
using namespace std::chrono_literals;

// A leader that has nothing else to do answers at its next look, which is a second away at most.
constexpr auto kSilent = 5s;

}  // namespace

// --- Questions between leaders: who is missing is known once all have answered.

void LogLeader::answer(uint32_t question) {
  tell_overdue();
  tell_waits();
  tell_acted();
  links_->post(
      {.kind = Kind::kAnswer, .rank = static_cast<uint32_t>(host_.first), .number = question});
}

uint32_t LogLeader::ask_everybody(TimePoint now) {
  const uint32_t question = answers_.ask(now);
  if (links_) {
    links_->post({.kind = Kind::kQuestion, .number = question});
    links_->flush();
  }
  return question;
}

// --- Now and then.

void LogLeader::look() {
  look_for_room();
  if (!links_) {
    look_for_overdue();
    return;
  }
  look_for_left();
  serve();
  answers_.look(progress_.job_time(Clock::now()));
  if (!coordinator_) tell_waits(), tell_overdue();
  look_for_overdue();
  links_->flush();
  words_.of(0).looks.fetch_add(1, std::memory_order_release);
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
      overdue_.forget(gone);
    }
    if (rank == told_by) answers_.left(rank);
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
                .number = wait.steps,
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

void LogLeader::hear_overdue() {
  for (int k = links_ ? 0 : 1; k < host_.count; ++k) {
    const LogWords& theirs = words_.of(k);
    for (uint32_t kind = 0; kind < LogWords::kOverdueKinds; ++kind) {
      const uint64_t what = theirs.overdue[kind].load(std::memory_order_acquire);
      const std::chrono::milliseconds waited(theirs.overdue_ms.load(std::memory_order_relaxed));
      overdue_.note(static_cast<OverdueWaits::Kind>(kind), host_.first + k, what, waited);
    }
  }
}

// A rank has waited for longer than it wants to for what finds no room in this host's log: for
// ranks of this host. What is said of them here is exact, and nobody else knows it.
void LogLeader::look_for_room() {
  bool served = false;
  for (int k = 0; k < host_.count; ++k) {
    const LogWords& theirs = words_.of(k);
    const uint64_t what = theirs.overdue[LogWords::kOverdueName].load(std::memory_order_acquire);
    if (what == 0) continue;
    if (!std::exchange(served, true)) serve();
    std::optional<WaitingName> wait = waiting_for_room(what);
    if (!wait) continue;
    std::erase(wait->missing, host_.first + k);  // its own answer, which is on its way
    if (wait->missing.empty()) continue;
    const std::chrono::milliseconds waited(theirs.overdue_ms.load(std::memory_order_relaxed));
    progress_.time_out(host_.first + k, waited, wait->missing, "\"" + wait->name + "\"");
    return;
  }
}

// A rank has waited for longer than it wants to, and only rank 0 can say for whom. What has been
// heard is judged first, so that it need not wait for the next look to be asked about once more; on
// one host both judgements are made here.
void LogLeader::look_for_overdue() {
  if (!coordinator_) return;
  hear_overdue();
  if (!overdue_.any()) return;
  serve();  // what they had asked for by then; it may forget ranks
  // In a hang all ranks wait for the same.
  std::map<std::pair<OverdueWaits::Kind, uint64_t>, std::optional<WaitingName>> known;
  const auto find = [&](OverdueWaits::Kind kind, int rank,
                        uint64_t what) -> std::optional<WaitingName> {
    if (kind == LogWords::kOverdueCall && waits_in(rank) != what) return std::nullopt;
    const auto [found, is_new] = known.try_emplace({kind, what});
    if (is_new) found->second = overdue_wait(kind, rank, what);
    return found->second;
  };
  const TimePoint now = progress_.job_time(Clock::now());
  auto verdict = overdue_.judge(answers_, find);
  for (int judged = 1; !verdict && judged < 3 && overdue_.asks(answers_, now); ++judged) {
    overdue_.asked(ask_everybody(now), now);
    verdict = overdue_.judge(answers_, find);
  }
  if (verdict)
    progress_.time_out(verdict->rank, verdict->waited, verdict->wait.missing, verdict->wait.name);
}

// What that rank waits for, as text, and who is missing in it as far as it is known; nothing: it is
// over.
std::optional<WaitingName> LogLeader::overdue_wait(OverdueWaits::Kind kind, int rank,
                                                   uint64_t what) const {
  if (kind == LogWords::kOverdueCall)
    return WaitingName{wait_of(rank).text, what, not_in_call(what)};
  std::optional<WaitingName> found;
  if (kind == LogWords::kOverdueEntry) {
    found = coordinator_->waiting_entry(what, all_acted_on());
    std::erase_if(found->missing, [this](int one) { return finds_no_room(one); });
  }
  if (kind == LogWords::kOverdueName) found = waiting_name(what);
  if (found) found->name = "\"" + found->name + "\"";
  return found;
}

std::optional<WaitingName> LogLeader::waiting_name(uint64_t hash) const {
  for (WaitingName& one : coordinator_->waiting())
    if (text_hash(one.name) == hash) return std::move(one);
  return std::nullopt;
}

// What is decided and not in this host's log waits for whoever is a whole log behind it.
std::optional<WaitingName> LogLeader::waiting_for_room(uint64_t hash) const {
  const auto entry = std::ranges::find(
      entries_, hash, [this](const LogEntry& one) { return text_hash(name_of(one)); });
  if (entry == entries_.end()) return std::nullopt;
  const uint64_t number = logged_ + static_cast<uint64_t>(entry - entries_.begin()) + 1;
  WaitingName waiting{name_of(*entry), number, {}};
  for (int rank = host_.first; rank < host_.first + host_.count; ++rank)
    if (logged_ >= LogWords::kEntries && acted_on(rank) <= logged_ - LogWords::kEntries)
      waiting.missing.push_back(rank);
  return waiting;
}

// An id is used only once all have its name from their logs.
const std::string& LogLeader::name_of(const LogEntry& entry) const {
  return entry.kind == LogEntry::Kind::kRun ? bound_.at(entry.id) : entry.name;
}

// Has this rank acted on all that its host's log has room for, since another one has not?
bool LogLeader::finds_no_room(int rank) const {
  const HostRanks host = shape_.hosts[static_cast<size_t>(shape_.host_of(rank))];
  uint64_t slowest = acted_on(rank);
  for (int one = host.first; one < host.first + host.count; ++one)
    slowest = std::min(slowest, acted_on(one));
  return acted_on(rank) - slowest >= LogWords::kEntries;
}

// --- Who waits for what: a communicator between hosts hears only of some who has come.

uint64_t LogLeader::waits_in(int rank) const {
  const int local_rank = rank - host_.first;
  if (local_rank >= 0 && local_rank < host_.count)
    return words_.of(local_rank).waits_in.load(std::memory_order_acquire);
  const auto said = waits_.find(rank);
  return said != waits_.end() ? said->second.number : 0;
}

LogLeader::Wait LogLeader::wait_of(int rank) const {
  const int local_rank = rank - host_.first;
  if (local_rank >= 0 && local_rank < host_.count) {
    const LogWords& theirs = words_.of(local_rank);
    const uint64_t name = theirs.waits_for.load(std::memory_order_acquire);
    const uint64_t number = theirs.waits_in.load(std::memory_order_acquire);
    if (number == 0) return {};
    return {{name, number, theirs.steps.load(std::memory_order_acquire)}, theirs.waits_text.load()};
  }
  const auto said = waits_.find(rank);
  return said != waits_.end() ? said->second : Wait{};
}

std::vector<RankWait> LogLeader::all_waits() const {
  std::vector<RankWait> waits;
  for (int rank = 0; rank < shape_.size(); ++rank) waits.push_back(wait_of(rank));
  return waits;
}

// Who waits in a later call, or after it for what is in the log, has come to this one.
std::vector<int> LogLeader::not_in_call(uint64_t number) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < shape_.size(); ++rank) {
    const uint64_t now = waits_in(rank);
    const bool past = LogWords::is_call(number) &&
                      ((LogWords::is_call(now) && now > number) ||
                       (LogWords::is_in_log(now) && now - LogWords::kInLog >= number));
    if (now != number && !past && acted_on(rank) != UINT64_MAX) ranks.push_back(rank);
  }
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
  std::vector<int> silent = answers_.silent(kSilent);
  if (silent.empty()) return false;
  waiting.push_back({"the question what its host waits for", picture_question_, std::move(silent)});
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
  answers_.look(progress_.job_time(Clock::now()));
  if (!coordinator_) return {};
  std::vector<WaitingName> waiting = coordinator_->waiting();
  look_for_crossed(waiting, std::move(waits));
  if (!links_) return waiting;
  if (const uint32_t asked = picture_question_; answers_.has_all(asked)) {
    if (std::exchange(pictured_, asked) != asked) {
      waiting_there_.clear();
      add_waiting_calls(waiting_there_);
      add_waiting_entry(waiting_there_);
      const TimePoint now = progress_.job_time(Clock::now());
      for (WaitingName& one : waiting_there_) one.seen = now;
    }
    const bool any = std::ranges::any_of(all_waits(), [](auto& wait) { return wait.number != 0; });
    const bool all_acted = std::ranges::min(all_acted_on()) >= coordinator_->entries();
    if (any || !all_acted || !waiting.empty())
      picture_question_ = ask_everybody(progress_.job_time(Clock::now()));
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
  if (const auto crossed = find_crossed_waits(waiting, waits))
    raise_trouble(
        peers_, TroubleReason::kAbort,
        crossed_text(*crossed, wait_of(crossed->caller).text, rank_text(peers_, crossed->caller),
                     rank_text(peers_, crossed->submitter)));
  else if (const auto step = find_crossed_step(waits))
    raise_trouble(peers_, TroubleReason::kAbort,
                  "ranks make calls and steps in another order (do all have as many batches?): " +
                      rank_text(peers_, step->stepper) + " is in " + wait_of(step->stepper).text +
                      ", " + rank_text(peers_, step->other) + " in " + wait_of(step->other).text);
}

std::vector<int> LogLeader::missing(const std::string& name) const {
  const uint64_t hash = text_hash(name);
  if (const auto waiting = waiting_for_room(hash)) return waiting->missing;
  if (!coordinator_) return {0};  // it was asked, and did not answer
  const std::optional<WaitingName> waiting = waiting_name(hash);
  return waiting ? waiting->missing : std::vector<int>{};
}

}  // namespace hvd
