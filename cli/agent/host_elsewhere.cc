// The part of HostMemory that an epoch with ranks on other hosts needs: what their agents have to
// hear, and what is heard of them.
#include <optional>
#include <utility>

#include "cli/agent/host_memory_impl.h"
#include "cli/quoted.h"
#include "runtime/base/utf8.h"

namespace hvd {

void HostMemory::Impl::start_elsewhere(std::span<const int> started_as) {
  elsewhere = {};
  elsewhere.started_as.assign(started_as.begin(), started_as.end());
  elsewhere.here.resize(static_cast<size_t>(epoch->world_size()));
  for (const int rank : ranks) elsewhere.here[static_cast<size_t>(rank)] = true;
}

bool HostMemory::Impl::anyone_elsewhere_lives() const {
  for (int rank = 0; rank < epoch->world_size(); ++rank)
    if (!elsewhere.here[static_cast<size_t>(rank)] &&
        epoch->block().fate(rank).dead.load(std::memory_order_acquire) == 0)
      return true;
  return false;
}

int HostMemory::Impl::started_as(int rank) const {
  return elsewhere.started_as.empty() ? rank : elsewhere.started_as[static_cast<size_t>(rank)];
}

// Ranks of the epoch's world on other hosts, of those that were started as these, in their order.
std::vector<int> HostMemory::Impl::numbers_elsewhere(std::span<const int> started) const {
  std::vector<int> numbers;
  for (const int one : started) {
    int rank = 0;
    while (rank < epoch->world_size() && started_as(rank) != one) ++rank;
    if (rank < epoch->world_size() && !elsewhere.here[static_cast<size_t>(rank)])
      numbers.push_back(rank);
  }
  return numbers;
}

// For whom the local rank waited in vain, as they were started.
std::vector<int> HostMemory::Impl::missed_by(int local_rank) const {
  std::vector<int> missed;
  for (int rank = 0; rank < epoch->world_size(); ++rank)
    if (epoch->block().misses(local_rank, rank)) missed.push_back(started_as(rank));
  return missed;
}

void HostMemory::Impl::hear_of_deaths(std::span<const int> started) {
  std::optional<int> first;
  for (const int rank : numbers_elsewhere(started)) {
    if (epoch->block().fate(rank).dead.exchange(1, std::memory_order_acq_rel) != 0) continue;
    if (!first) first = rank;
  }
  if (!first) return;
  break_elsewhere(shown(*first) + " died");
}

// "rank 4 on gpu7", in an epoch of several hosts.
std::string HostMemory::Impl::shown(int rank) const {
  const auto host = host_names.find(static_cast<int>(epoch->block().fate(rank).host_first));
  return "rank " + std::to_string(rank) + (host != host_names.end() ? " on " + host->second : "");
}

void HostMemory::Impl::hear_of_trouble(const Breakage& breakage) {
  if (epoch->block().reason.load(std::memory_order_acquire) == 0) elsewhere.heard = breakage;
  break_elsewhere(breakage.reason);
}

// The first reason stays. Its text is written before the word that points to it.
void HostMemory::Impl::break_elsewhere(const std::string& text) {
  ControlBlock& block = epoch->block();
  if (block.reason.load(std::memory_order_acquire) == 0)
    copy_text(block.elsewhere, sizeof block.elsewhere, printable(text));
  raise_trouble(TroubleReason::kElsewhere, 0);
}

// One table for all ranks of the world: where they are all here, it is here.
void HostMemory::Impl::ask_store(Slot& slot, const AgentMessage& question) {
  if (epoch->local_size() < epoch->world_size() && events.store_asked)
    events.store_asked(slot_number(slot), question);
  else
    store->handle(slot.local_rank, question, clock.time(Clock::now()));
}

void HostMemory::Impl::answer_store(const Slot& slot, const AgentMessage& answer) {
  if (is_current(answer.epoch) && in_epoch(slot) && slot.connection != nullptr)
    send(*slot.connection, answer);
}

// Once, and not of a death, of which they hear as such, nor what they have told.
void HostMemory::Impl::tell_broken() {
  const uint32_t word = epoch->block().reason.load(std::memory_order_acquire);
  const auto reason = static_cast<TroubleReason>(word & 0xff);
  if (reason == TroubleReason::kNone || std::exchange(elsewhere.broken_told, true)) return;
  if (reason == TroubleReason::kDeath || reason == TroubleReason::kElsewhere) return;
  const int local_rank = static_cast<int>(word >> 8);
  Breakage breakage{epoch->epoch(), trouble_text(), {}, reason == TroubleReason::kLostLink};
  if (local_rank < epoch->local_size() && !breakage.lost_link)
    breakage.waited_for = missed_by(local_rank);
  if (events.broken) events.broken(breakage);
}

void HostMemory::hear_of_deaths(uint32_t epoch, std::span<const int> ranks) {
  if (impl_->is_current(epoch)) impl_->hear_of_deaths(ranks);
}

void HostMemory::hear_of_trouble(const Breakage& breakage) {
  if (impl_->is_current(breakage.epoch)) impl_->hear_of_trouble(breakage);
}

void HostMemory::answer_store(int slot, const AgentMessage& answer) {
  impl_->answer_store(impl_->slots.at(static_cast<size_t>(slot)), answer);
}

}  // namespace hvd
