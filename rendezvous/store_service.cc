#include "rendezvous/store_service.h"

#include <algorithm>

namespace hvd {
namespace {

constexpr int kWaitsMax = 1024;  // of one rank

}  // namespace

StoreService::StoreService(uint32_t epoch, std::vector<int> ranks, Reply reply)
    : epoch_(epoch), reply_(std::move(reply)) {
  for (int rank : ranks) members_.push_back({rank, false, std::nullopt});
}

void StoreService::handle(int member, const AgentMessage& question, TimePoint now) {
  if (question.epoch != epoch_) return;
  members_[static_cast<size_t>(member)].reached = now;
  try {
    const bool changes =
        question.kind == AgentMessage::kStoreSet || question.kind == AgentMessage::kStoreAdd;
    if (changes && !broken_.empty()) {
      refuse_broken(member, question.id, question.key);
    } else if (question.kind == AgentMessage::kStoreSet) {
      table_.set(question.key, question.body);
      answer(member, question.id, 0, {});
      answer_waiting(question.key);
    } else if (question.kind == AgentMessage::kStoreAdd) {
      answer(member, question.id, table_.add(question.key, question.value), {});
      answer_waiting(question.key);
    } else {
      wait(member, question, now);
    }
  } catch (const Error& error) {
    refuse(member, question.id, static_cast<int64_t>(error.code()), error.what());
  }
}

void StoreService::wait(int member, const AgentMessage& question, TimePoint now) {
  const bool wants_value = question.kind == AgentMessage::kStoreGet;
  if (const Bytes* value = table_.find(question.key)) {
    answer(member, question.id, 0, wants_value ? *value : Bytes{});
    return;
  }
  if (!broken_.empty()) {
    refuse_broken(member, question.id, question.key);
    return;
  }
  const auto own = [&](const Waiting& one) { return one.member == member; };
  if (std::count_if(waiting_.begin(), waiting_.end(), own) >= kWaitsMax) {
    refuse(member, question.id, static_cast<int64_t>(ErrorCode::kInvalidArgument),
           "1024 calls of this rank wait in the store already");
    return;
  }
  // A wait of a year is one for ever; more would overflow the clock.
  constexpr int64_t kYearMs = 365LL * 24 * 3'600'000;
  const bool for_ever = question.value < 0 || question.value > kYearMs;
  waiting_.push_back({member, question.id, question.key, wants_value, now,
                      for_ever ? Deadline::never()
                               : Deadline::at(now + std::chrono::milliseconds(question.value))});
}

void StoreService::answer(int member, uint32_t id, int64_t sum, Bytes value) {
  AgentMessage message;
  message.kind = AgentMessage::kStoreAnswer;
  message.epoch = epoch_;
  message.id = id;
  message.value = sum;
  message.body = std::move(value);
  reply_(member, message);
}

void StoreService::refuse(int member, uint32_t id, int64_t code, const std::string& text) {
  AgentMessage message;
  message.kind = AgentMessage::kStoreRefused;
  message.epoch = epoch_;
  message.id = id;
  message.value = code;
  message.body = to_bytes(text);
  reply_(member, message);
}

void StoreService::refuse_broken(int member, uint32_t id, const std::string& key) {
  refuse(member, id, kCommFailureCode, broken_ + "; \"" + key + "\" is not in the store");
}

void StoreService::broken(const std::string& why) {
  if (!broken_.empty()) return;
  broken_ = why;
  std::vector<Waiting> stranded;
  stranded.swap(waiting_);
  for (const Waiting& one : stranded) refuse_broken(one.member, one.id, one.key);
}

void StoreService::answer_waiting(const std::string& key) {
  const Bytes& value = *table_.find(key);
  std::vector<Waiting> served;
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    if (waiting.key != key) return false;
    served.push_back(waiting);
    return true;
  });
  for (const Waiting& one : served)
    answer(one.member, one.id, 0, one.wants_value ? value : Bytes{});
}

void StoreService::ended(int member) {
  members_[static_cast<size_t>(member)].ended = true;
  std::erase_if(waiting_, [&](const Waiting& one) { return one.member == member; });
}

std::optional<TimePoint> StoreService::deadline() const {
  std::optional<TimePoint> first;
  for (const Waiting& one : waiting_) {
    if (one.deadline.is_never()) continue;
    if (!first || one.deadline.when() < *first) first = one.deadline.when();
  }
  return first;
}

void StoreService::tick(TimePoint now) {
  std::vector<Waiting> late;
  std::erase_if(waiting_, [&](const Waiting& one) {
    if (!one.deadline.passed(now)) return false;
    late.push_back(one);
    return true;
  });
  for (const Waiting& one : late)
    refuse(one.member, one.id, static_cast<int64_t>(ErrorCode::kTimeout), timeout_text(one, now));
}

// Who could still set the key: whoever has not asked for anything since the wait began. A rank that
// waits for something itself has been here.
std::string StoreService::timeout_text(const Waiting& waiting, TimePoint now) const {
  constexpr size_t kNamesMax = 8;
  std::vector<std::string> names;
  for (size_t i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    if (static_cast<int>(i) == waiting.member) continue;
    const bool waits = std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiting& one) {
      return one.member == static_cast<int>(i);
    });
    if (!member.ended && (waits || (member.reached && *member.reached >= waiting.since))) continue;
    names.push_back("rank " + std::to_string(member.rank) +
                    (member.ended      ? " (ended)"
                     : !member.reached ? " (was never here)"
                                       : ""));
  }
  const auto waited =
      std::chrono::duration_cast<std::chrono::milliseconds>(now - waiting.since).count();
  std::string text = "rank " + std::to_string(members_[static_cast<size_t>(waiting.member)].rank) +
                     " waited " + std::to_string(waited) + " ms for \"" + waiting.key +
                     "\" in the store; ";
  if (names.empty()) return text + "every other rank has been there since, none has set it";
  text += "not there since: ";
  for (size_t i = 0; i < names.size() && i < kNamesMax; ++i)
    text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kNamesMax)
    text += " and " + std::to_string(names.size() - kNamesMax) + " more";
  return text;
}

}  // namespace hvd
