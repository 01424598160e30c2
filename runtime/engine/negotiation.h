// One rank's end of the log: named operations from any thread, run in the order of the log.
//
// submit() leaves an operation in an inbox; the holder of the progress token announces it (a bit
// when its description is known, else in full), acts on the log's entries in order, and completes
// what the communicator has resolved. On the coordinator's rank (local rank 0) it also decides.
// With several hosts the entries of that rank will come from the world's coordinator by message;
// the words inside a host stay.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/peers.h"
#include "hvd/work.h"
#include "runtime/base/mutex.h"
#include "runtime/engine/coordinator.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/feed.h"
#include "runtime/engine/log_words.h"
#include "runtime/engine/progress.h"
#include "runtime/engine/status_writer.h"

namespace hvd {

class Negotiation final : public Feed {
 public:
  // Made by the init thread, whose `status` it is. `words` of every rank lie at `offset` of its
  // piece of `segment`. All outlive this.
  Negotiation(Progress& progress, Peers& peers, Communicator& communicator,
              std::shared_ptr<Segment> segment, uint64_t offset, StatusWriter& status,
              std::chrono::milliseconds collective_timeout);
  ~Negotiation() override;

  // Any thread. Throws kInvalidArgument without a name, with one that is too long, or when the name
  // is under way here.
  // `self` keeps alive all that a wait needs; the Work holds it weakly.
  std::shared_ptr<Work> submit(std::unique_ptr<Submission> submission,
                               const std::shared_ptr<Negotiation>& self);
  // The init thread waits in a synchronous call of this name; empty: no more. That thread only.
  void set_calling(std::string_view name);
  // In a forked child: from now on a Work that is not done throws, instead of touching what is not
  // there. Async-signal-safe.
  void forget_in_child() noexcept { forked_.store(true, std::memory_order_relaxed); }
  // Fails whatever is not started with this text: this rank leaves. With the token.
  void refuse_waiting(const std::string& why);

  bool feed() override;
  bool waiting() const override { return waiting_ > 0; }
  void epoch_over() override;
  void add_waiting(std::vector<WaitingName>& waiting) override;
  void look() override;
  bool needs(int local_rank) override;

 private:
  class Pending;
  struct Known {
    uint32_t id = 0;
    uint64_t hash = 0;
  };

  LogWords& words(int local_rank) const {
    return *reinterpret_cast<LogWords*>(segment_->at(local_rank) + offset_);
  }
  LogWords& mine() const { return words(me_); }
  void say_changed();
  bool take_inbox();
  void ask(const std::shared_ptr<Pending>& pending);
  bool announce();
  bool coordinate();
  bool hear(int local_rank);
  bool append_decided();
  void append(const LogEntry& entry);
  bool read_log();
  void act_on(const LogWords::Entry& entry);
  bool complete_resolved();
  void finish(const std::shared_ptr<Pending>& pending, std::exception_ptr error);
  void finish_asked();
  std::vector<int> missing(const std::string& name) const;
  bool ask_who_is_missing(const std::string& name);
  void look_for_calls(const WaitingName& waiting);

  Progress& progress_;
  Peers& peers_;
  Communicator& communicator_;
  const std::shared_ptr<Segment> segment_;
  const uint64_t offset_;
  const int me_, size_, first_rank_;
  StatusWriter& status_;  // the init thread's
  const std::thread::id init_thread_ = std::this_thread::get_id();
  const std::chrono::milliseconds collective_timeout_;

  Mutex mutex_;
  std::unordered_set<std::string> under_way_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Pending>> inbox_ GUARDED_BY(mutex_);
  std::atomic<bool> inbox_filled_{false};
  std::atomic<bool> forked_{false};

  // Guarded by the progress token.
  size_t waiting_ = 0;                                               // submitted and not finished
  std::unordered_map<std::string, std::shared_ptr<Pending>> asked_;  // not in the log yet
  std::deque<std::shared_ptr<Pending>> to_announce_;
  std::deque<std::shared_ptr<Pending>> started_;
  std::unordered_map<std::string, Known> known_;
  std::vector<std::string> name_of_id_;
  uint64_t changes_ = 0, announced_ = 0, read_ = 0;
  bool over_ = false;
  std::string refusal_;  // why nothing is taken any more

  // The coordinator's rank only; guarded by the progress token.
  std::unique_ptr<Coordinator> coordinator_;
  std::vector<uint64_t> changes_seen_, consumed_;
  uint64_t logged_ = 0;
};

}  // namespace hvd
