// The coordinator's half of the log: hears all ranks, appends what is decided, knows what waits.
#include <algorithm>
#include <array>

#include "runtime/base/fault_point.h"
#include "runtime/base/utf8.h"
#include "runtime/engine/negotiation.h"
#include "runtime/engine/text_hash.h"

namespace hvd {

bool Negotiation::coordinate() {
  bool moved = false;
  for (int k = 0; k < size_; ++k) moved |= hear(k);
  return append_decided() || moved;
}

bool Negotiation::hear(int local_rank) {
  const auto who = static_cast<size_t>(local_rank);
  LogWords& theirs = words(local_rank);
  const uint64_t changes = theirs.changes.load(std::memory_order_acquire);
  if (changes == changes_seen_[who]) return false;
  changes_seen_[who] = changes;
  const uint64_t announced = theirs.announced.load(std::memory_order_acquire);
  for (; consumed_[who] != announced; ++consumed_[who]) {
    const auto& slot = theirs.announcements[consumed_[who] % LogWords::kAnnouncements];
    coordinator_->announce(local_rank, {slot.name, slot.hash, slot.text});
  }
  std::array<uint64_t, LogWords::kNamesMax / 64> bits;
  for (size_t word = 0; word < bits.size(); ++word)
    bits[word] = theirs.ready[word].load(std::memory_order_acquire);
  coordinator_->observe(local_rank, bits);
  if (mine().consumed[who].load(std::memory_order_relaxed) != consumed_[who]) {
    mine().consumed[who].store(consumed_[who], std::memory_order_release);
    ring_sleepers(peers_);  // it may have more than the ring holds
  }
  return true;
}

bool Negotiation::append_decided() {
  if (!coordinator_->has_decided()) return false;
  uint64_t slowest = logged_;
  for (int k = 0; k < size_; ++k)
    slowest = std::min(slowest, words(k).read.load(std::memory_order_acquire));
  const uint64_t before = logged_;
  while (coordinator_->has_decided() && logged_ - slowest < LogWords::kEntries)
    append(*coordinator_->next());
  if (logged_ == before) return false;
  fault_point("engine_log");
  mine().logged.store(logged_, std::memory_order_release);
  ring_sleepers(peers_);
  return true;
}

void Negotiation::append(const LogEntry& entry) {
  LogWords::Entry& slot = mine().log[logged_++ % LogWords::kEntries];
  slot.kind = static_cast<uint32_t>(entry.kind);
  slot.id = entry.id;
  copy_text(slot.name, sizeof slot.name, entry.name);
  copy_text(slot.text, sizeof slot.text, entry.text);
}

// Also when nothing of this rank's own waits: then it may be the missing one.
void Negotiation::add_waiting(std::vector<WaitingName>& waiting) {
  if (!coordinator_ || progress_.end().closed()) return;
  coordinate();
  for (WaitingName& name : coordinator_->waiting()) {
    look_for_calls(name);
    waiting.push_back(std::move(name));
  }
}

// A rank that is missing because it waits in a synchronous call of the same name.
void Negotiation::look_for_calls(const WaitingName& waiting) {
  for (const int rank : waiting.missing) {
    if (words(rank - first_rank_).calling.load(std::memory_order_acquire) !=
        text_hash(waiting.name))
      continue;
    raise_trouble(peers_, TroubleReason::kAbort,
                  "\"" + waiting.name + "\" was called synchronously on rank " +
                      std::to_string(rank) +
                      " and submitted asynchronously, or from another thread than init()'s, on "
                      "another; call it the same way on all ranks");
    return;
  }
}

// Past the timeout of a wait here. True: the coordinator will say who is missing.
bool Negotiation::ask_who_is_missing(const std::string& name) {
  if (coordinator_ || asked_.count(name) == 0) return false;
  const uint64_t hash = text_hash(name);
  if (mine().overdue.load(std::memory_order_relaxed) == hash) return true;
  mine().overdue_ms.store(static_cast<uint64_t>(collective_timeout_.count()),
                          std::memory_order_relaxed);
  mine().overdue.store(hash, std::memory_order_release);
  for (const Sleeper sleeper : {kCaller, kEngineThread}) peers_.ring(0, sleeper);
  return true;
}

void Negotiation::look() {
  if (!coordinator_) return;
  for (int k = 1; k < size_; ++k) {
    const uint64_t overdue = words(k).overdue.load(std::memory_order_acquire);
    if (overdue == 0) continue;
    coordinate();
    for (WaitingName& waiting : coordinator_->waiting()) {
      if (text_hash(waiting.name) != overdue) continue;
      for (int& rank : waiting.missing) rank -= first_rank_;
      const uint64_t ms = words(k).overdue_ms.load(std::memory_order_relaxed);
      progress_.time_out(k, std::chrono::milliseconds(ms), waiting.missing,
                         "\"" + waiting.name + "\"");
      return;
    }
  }
}

std::vector<int> Negotiation::missing(const std::string& name) const {
  if (asked_.count(name) == 0) return communicator_.missing_ranks();
  if (!coordinator_) return {0};  // it was asked, and did not answer
  for (WaitingName& waiting : coordinator_->waiting())
    if (waiting.name == name) {
      for (int& rank : waiting.missing) rank -= first_rank_;
      return waiting.missing;
    }
  return {};
}

}  // namespace hvd
