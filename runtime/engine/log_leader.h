// What local rank 0 of a host does for the log: hears its ranks, and appends to the log of the host
// what is decided.
//
// On rank 0 of the world the decisions are made, by a Coordinator that counts all ranks. The leader
// of another host passes on to it what its ranks asked for, by a link of its own, and takes the
// entries from there; so every host's log has the same entries in the same order. With the progress
// token held.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/peers.h"
#include "collectives/world_shape.h"
#include "runtime/base/deadline.h"
#include "runtime/engine/coordinator.h"
#include "runtime/engine/crossed_waits.h"
#include "runtime/engine/leader_answers.h"
#include "runtime/engine/log_links.h"
#include "runtime/engine/log_words.h"
#include "runtime/engine/overdue_waits.h"
#include "runtime/engine/progress.h"

namespace hvd {

class LogLeader {
 public:
  // `links`: number of the log's links, on several hosts. All outlive this but `words`.
  LogLeader(Progress& progress, Peers& peers, HostLogWords words, const WorldShape& shape,
            uint32_t links);

  // The links to other hosts are there. Throws kUnavailable when one cannot be had.
  bool linked() { return links_ == nullptr || links_->take(); }
  std::vector<int> missing_links() const {
    return links_ == nullptr ? std::vector<int>{} : links_->missing();
  }
  // Hears, passes on, decides, appends; true if anything moved.
  bool serve();
  // Where there was nothing to serve: with several hosts the others of this one see that it works.
  void count_round();
  // There is something to pass on, or to hear, whether or not anything of this rank's waits.
  bool waiting() const;
  std::chrono::milliseconds watch(std::vector<pollfd>& descriptors) const;

  // Now and then: ranks that have left or waited too long, links that ended.
  void look();
  // What waits in the whole world, where it is known: on rank 0.
  std::vector<WaitingName> look_at_waiting();
  // Can this rank say at once who is missing?
  bool knows_all() const { return coordinator_ != nullptr && links_ == nullptr; }
  std::vector<int> missing(const std::string& name) const;
  // This rank has asked for its last.
  void leave();

 private:
  struct Wait : RankWait {
    std::string text = {};
  };

  bool hear(int local_rank);
  void tell_bits(int local_rank, size_t word, uint64_t bits);
  void hear_from(int leader, const LogMessage& message);
  bool decide();
  bool append_entries();
  void append(const LogEntry& entry);
  void answer(uint32_t question);
  uint32_t ask_everybody(TimePoint now);
  void look_for_left();
  void note_left(int rank, int told_by);
  void tell_waits();
  void tell_wait(int local_rank, const Wait& wait);
  void take_back_wait(int local_rank);
  void tell_acted();
  void tell_overdue();
  void hear_overdue();
  void look_for_room();
  void look_for_overdue();
  std::optional<WaitingName> waiting_name(uint64_t hash) const;
  std::optional<WaitingName> waiting_for_room(uint64_t hash) const;
  const std::string& name_of(const LogEntry& entry) const;
  bool finds_no_room(int rank) const;
  std::optional<WaitingName> overdue_wait(OverdueWaits::Kind kind, int rank, uint64_t what) const;
  Wait wait_of(int rank) const;
  uint64_t waits_in(int rank) const;
  std::vector<RankWait> all_waits() const;
  std::vector<int> not_in_call(uint64_t number) const;
  uint64_t acted_on(int rank) const;
  std::vector<uint64_t> all_acted_on() const;
  void add_waiting_calls(std::vector<WaitingName>& waiting) const;
  void add_waiting_entry(std::vector<WaitingName>& waiting);
  bool add_silent_leaders(std::vector<WaitingName>& waiting) const;
  void look_for_crossed(const std::vector<WaitingName>& waiting, std::vector<RankWait> waits);

  // Constant after construction.
  Progress& progress_;
  Peers& peers_;
  const HostLogWords words_;
  const WorldShape shape_;
  const HostRanks host_;
  std::unique_ptr<Coordinator> coordinator_;  // on rank 0
  std::unique_ptr<LogLinks> links_;           // with several hosts

  // By local rank.
  std::vector<uint64_t> changes_seen_, consumed_;
  std::vector<std::vector<uint64_t>> told_bits_;  // to rank 0
  std::vector<uint64_t> told_acted_, told_overdue_[LogWords::kOverdueKinds];
  std::vector<RankWait> told_waits_;
  std::vector<bool> told_left_;

  std::deque<LogEntry> entries_;    // decided, not in the host's log yet
  std::vector<std::string> bound_;  // by id: the names in the host's log that have one
  uint64_t logged_ = 0;
  int left_elsewhere_ = -1;  // a rank of another host that left; said once `left_after_` is logged
  uint64_t left_after_ = 0;

  // On rank 0: what the leaders said.
  LeaderAnswers answers_;
  OverdueWaits overdue_;
  std::map<int, Wait> waits_;                     // by rank
  std::map<int, uint64_t> acted_;                 // by rank
  std::vector<WaitingName> waiting_there_;        // as all leaders answered question `pictured_`
  uint32_t picture_question_ = 0, pictured_ = 0;  // the last that was asked for it
  uint64_t held_up_at_ = UINT64_MAX;              // then: behind so many entries, if at all
};

}  // namespace hvd
