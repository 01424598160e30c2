// The coordinator's decisions: one record per name, complete when all ranks have asked.
#include "runtime/engine/coordinator.h"

#include <algorithm>
#include <bit>

#include "runtime/base/error.h"
#include "runtime/engine/unnamed.h"

namespace hvd {
namespace {

constexpr size_t kUnboundKept = 1'024;  // more are hardly under way at once

}  // namespace

Coordinator::Coordinator(int ranks, size_t names_max)
    : ranks_(static_cast<size_t>(ranks)),
      names_max_(names_max),
      phase_(ranks_, std::vector<uint64_t>((names_max + 63) / 64)) {}

Coordinator::Name& Coordinator::name_of(const std::string& name) {
  auto& record = names_[name];
  if (!record) {
    record = std::make_unique<Name>();
    record->name = name;
    record->by_rank.resize(ranks_);
    record->round = entries_;
  }
  return *record;
}

void Coordinator::announce(int rank, const Announcement& announcement) {
  ask(rank, name_of(announcement.name), &announcement);
}

void Coordinator::observe(int rank, size_t word, uint64_t bits) {
  uint64_t& phase = phase_[static_cast<size_t>(rank)].at(word);
  uint64_t flipped = bits ^ phase;
  for (phase = bits; flipped != 0; flipped &= flipped - 1) {
    const size_t id = word * 64 + static_cast<size_t>(std::countr_zero(flipped));
    if (id >= by_id_.size())
      throw Error(ErrorCode::kInternal,
                  "rank " + std::to_string(rank) + " flipped the bit of a name that has none");
    ask(rank, *by_id_[id], nullptr);
  }
}

// A flipped bit asks for what the id stands for.
void Coordinator::ask(int rank, Name& name, const Announcement* announcement) {
  const auto who = static_cast<size_t>(rank);
  if (name.by_rank[who] != 0)
    throw Error(ErrorCode::kInternal,
                "rank " + std::to_string(rank) + " asked twice for \"" + name.name + "\"");
  name.by_rank[who] = 1;
  if (announcement != nullptr) {
    name.said.resize(ranks_, name.known);
    name.said[who] = {announcement->hash, announcement->text, announcement->apart};
  }
  if (static_cast<size_t>(++name.asked) == ranks_) ready_.push_back(&name);
}

std::optional<LogEntry> Coordinator::next() {
  if (ready_.empty()) return std::nullopt;
  Name& name = *ready_.front();
  ready_.pop_front();
  LogEntry entry = decide(name);
  name.asked = 0;
  name.entry = ++entries_;
  name.round = entries_;
  name.by_rank.assign(ranks_, 0);
  name.said.clear();
  if (!name.bound) {
    unbound_.emplace_back(entries_, entry.name);
    if (unbound_.size() > kUnboundKept) unbound_.pop_front();
    names_.erase(entry.name);
  }
  return entry;
}

LogEntry Coordinator::decide(Name& name) {
  if (name.said.empty()) return {LogEntry::Kind::kRun, name.id, {}, {}};
  for (size_t rank = 1; rank < ranks_; ++rank)
    if (name.said[rank].hash != name.said[0].hash)
      return {LogEntry::Kind::kRefuse, 0, name.name, difference(name, rank)};
  const bool apart = std::ranges::any_of(name.said, &Said::apart);
  if (!name.bound) {
    if (by_id_.size() == names_max_ || is_unnamed(name.name))
      return {LogEntry::Kind::kOnce, 0, name.name, {}, apart};
    name.bound = true;
    name.id = static_cast<uint32_t>(by_id_.size());
    by_id_.push_back(&name);
  }
  name.known = {name.said[0].hash, name.said[0].text};
  return {LogEntry::Kind::kBind, name.id, name.name, {}, apart};
}

std::string Coordinator::difference(const Name& name, size_t rank) const {
  auto side = [&](size_t r) {
    return "rank " + std::to_string(r) + " submitted " + name.said[r].text;
  };
  return "\"" + name.name + "\" differs between ranks: " + side(0) + ", " + side(rank) +
         "; submit the same operation on all ranks";
}

std::vector<WaitingName> Coordinator::waiting() const {
  std::vector<WaitingName> result;
  for (const auto& [key, name] : names_) {
    if (name->asked == 0 || static_cast<size_t>(name->asked) == ranks_) continue;
    WaitingName waiting{key, name->round, {}};
    for (size_t rank = 0; rank < ranks_; ++rank) {
      if (name->by_rank[rank] == 0)
        waiting.missing.push_back(static_cast<int>(rank));
      else if (waiting.asked.empty() && !name->said.empty())
        waiting.asked = name->said[rank].text;
    }
    result.push_back(std::move(waiting));
  }
  return result;
}

// What nobody has finished is not asked for anew: its name, if it is bound, has this number still.
WaitingName Coordinator::waiting_entry(uint64_t number, std::span<const uint64_t> acted) const {
  WaitingName waiting{"entry " + std::to_string(number) + " of the log",
                      ~number,  // no round of waiting()'s
                      {}};
  if (const auto name = std::ranges::find(by_id_, number, &Name::entry); name != by_id_.end())
    waiting.name = (*name)->name;
  const auto unbound =
      std::ranges::find(unbound_, number, [](const auto& entry) { return entry.first; });
  if (unbound != unbound_.end()) waiting.name = unbound->second;
  for (size_t rank = 0; rank < acted.size(); ++rank)
    if (acted[rank] < number) waiting.missing.push_back(static_cast<int>(rank));
  return waiting;
}

}  // namespace hvd
