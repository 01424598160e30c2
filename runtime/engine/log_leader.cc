// Words of this host in, entries out; on several hosts messages between the two. What is looked at
// now and then is in log_leader_looks.cc.
#include "runtime/engine/log_leader.h"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/fault_point.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

using Kind = LogMessage::Kind;

constexpr size_t kWords = LogWords::kNamesMax / 64;

LogMessage message_of(const LogEntry& entry) {
  return {.kind = Kind::kEntry,
          .number = entry.id,
          .hash = entry.apart ? 1u : 0u,
          .value = static_cast<uint64_t>(entry.kind),
          .name = entry.name,
          .text = std::string(head_of(entry.text, LogWords::kTextBytes - 1))};
}

}  // namespace

LogLeader::LogLeader(Progress& progress, Peers& peers, HostLogWords words, const WorldShape& shape,
                     uint32_t links)
    : progress_(progress),
      peers_(peers),
      words_(std::move(words)),
      shape_(shape),
      host_(shape.hosts[static_cast<size_t>(shape.host_of(peers.world().rank))]),
      answers_(shape) {
  const auto ranks = static_cast<size_t>(host_.count);
  changes_seen_.resize(ranks);
  consumed_.resize(ranks);
  told_bits_.resize(ranks, std::vector<uint64_t>(kWords));
  for (auto& told : told_overdue_) told.resize(ranks);
  told_acted_.resize(ranks);
  told_waits_.resize(ranks);
  told_left_.resize(ranks);
  if (host_.first == 0)
    coordinator_ = std::make_unique<Coordinator>(shape.size(), LogWords::kNamesMax);
  if (!shape.one_host()) links_ = std::make_unique<LogLinks>(peers, shape, links);
}

void LogLeader::count_round() {
  if (!links_) return;
  std::atomic<uint64_t>& rounds = words_.of(0).rounds;
  rounds.store(rounds.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

bool LogLeader::serve() {
  if (progress_.end().closed()) return false;
  bool moved = false;
  count_round();
  if (links_)
    moved = links_->receive([this](int leader, const LogMessage& one) { hear_from(leader, one); });
  for (int k = 0; k < host_.count; ++k) moved |= hear(k);
  moved |= decide();
  moved |= append_entries();
  if (links_) moved |= links_->flush();
  return moved;
}

bool LogLeader::waiting() const {
  return !entries_.empty() || (links_ && links_->has_unsent()) || answers_.owed();
}

std::chrono::milliseconds LogLeader::watch(std::vector<pollfd>& descriptors) const {
  if (!links_ || progress_.end().closed()) return std::chrono::milliseconds::max();
  const auto again = links_->watch(descriptors);
  return overdue_.any() ? std::min(again, OverdueWaits::kAskAgain) : again;
}

// --- Hearing.

bool LogLeader::hear(int local_rank) {
  const auto who = static_cast<size_t>(local_rank);
  const LogWords& theirs = words_.of(local_rank);
  const uint64_t changes = theirs.changes.load(std::memory_order_acquire);
  if (changes == changes_seen_[who]) return false;
  changes_seen_[who] = changes;
  const int rank = host_.first + local_rank;
  const uint64_t announced = theirs.announced.load(std::memory_order_acquire);
  std::array<uint64_t, kWords> ready;
  for (size_t word = 0; word < kWords; ++word)
    ready[word] = theirs.ready[word].load(std::memory_order_acquire);
  take_back_wait(local_rank);
  for (; consumed_[who] != announced; ++consumed_[who]) {
    const auto& slot = theirs.announcements[consumed_[who] % LogWords::kAnnouncements];
    if (coordinator_) {
      coordinator_->announce(rank, {slot.name, slot.hash, slot.text, slot.apart != 0});
    } else {
      links_->post({.kind = Kind::kAnnounce,
                    .rank = static_cast<uint32_t>(rank),
                    .number = slot.apart != 0 ? 1u : 0u,
                    .hash = slot.hash,
                    .name = slot.name,
                    .text = slot.text});
    }
  }
  for (size_t word = 0; word < kWords; ++word) tell_bits(local_rank, word, ready[word]);
  auto& consumed = words_.of(0).consumed[who];
  if (consumed.load(std::memory_order_relaxed) != consumed_[who]) {
    consumed.store(consumed_[who], std::memory_order_release);
    ring_sleepers(peers_);  // it may have more than the ring holds
  }
  return true;
}

void LogLeader::tell_bits(int local_rank, size_t word, uint64_t bits) {
  uint64_t& told = told_bits_[static_cast<size_t>(local_rank)][word];
  if (told == bits) return;
  told = bits;
  const int rank = host_.first + local_rank;
  if (coordinator_)
    coordinator_->observe(rank, word, bits);
  else
    links_->post({.kind = Kind::kReady,
                  .rank = static_cast<uint32_t>(rank),
                  .number = static_cast<uint32_t>(word),
                  .value = bits});
}

void LogLeader::hear_from(int leader, const LogMessage& message) {
  const auto rank = static_cast<int>(message.rank);
  switch (message.kind) {
    case Kind::kAnnounce:
      coordinator_->announce(rank, {message.name, message.hash, message.text, message.number != 0});
      break;
    case Kind::kReady:
      coordinator_->observe(rank, message.number, message.value);
      break;
    case Kind::kOverdue:
      overdue_.note(static_cast<OverdueWaits::Kind>(message.number), rank, message.hash,
                    std::chrono::milliseconds(message.value));
      break;
    case Kind::kWaits:
      waits_[rank] = {{message.hash, message.value, message.number}, message.text};
      break;
    case Kind::kActed:
      acted_[rank] = message.value;
      break;
    case Kind::kAnswer:
      answers_.answered(leader, message.number);
      break;
    case Kind::kEntry:
      entries_.push_back({static_cast<LogEntry::Kind>(message.value), message.number, message.name,
                          message.text, message.hash != 0});
      break;
    case Kind::kQuestion:
      answer(message.number);
      break;
    case Kind::kLeft:
      if (rank == leader) links_->expect_end(rank);
      note_left(rank, leader);
      break;
  }
}

// --- Deciding and appending.

bool LogLeader::decide() {
  if (!coordinator_ || !coordinator_->has_decided()) return false;
  while (std::optional<LogEntry> entry = coordinator_->next()) {
    if (links_) links_->post(message_of(*entry));
    entries_.push_back(*std::move(entry));
  }
  return true;
}

bool LogLeader::append_entries() {
  LogWords& mine = words_.of(0);
  bool moved = false;
  if (!entries_.empty()) {
    uint64_t slowest = logged_;
    for (int k = 0; k < host_.count; ++k)
      slowest = std::min(slowest, words_.of(k).read.load(std::memory_order_acquire));
    for (; !entries_.empty() && logged_ - slowest < LogWords::kEntries; entries_.pop_front()) {
      append(entries_.front());
      moved = true;
    }
  }
  if (moved) {
    fault_point("engine_log");
    mine.logged.store(logged_, std::memory_order_release);
  }
  if (left_elsewhere_ >= 0 && logged_ >= left_after_) {
    mine.left_elsewhere.store(static_cast<uint32_t>(std::exchange(left_elsewhere_, -1)) + 1,
                              std::memory_order_release);
    moved = true;
  }
  if (moved) ring_sleepers(peers_);
  return moved;
}

void LogLeader::append(const LogEntry& entry) {
  LogWords::Entry& slot = words_.of(0).log[logged_++ % LogWords::kEntries];
  slot.kind = static_cast<uint32_t>(entry.kind);
  slot.id = entry.id;
  slot.apart = entry.apart ? 1 : 0;
  copy_text(slot.name, sizeof slot.name, entry.name);
  copy_text(slot.text, sizeof slot.text, entry.text);
  if (entry.kind != LogEntry::Kind::kBind) return;
  if (bound_.size() <= entry.id) bound_.resize(entry.id + 1);
  bound_[entry.id] = entry.name;
}

}  // namespace hvd
