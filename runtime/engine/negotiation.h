// One rank's end of the log: named operations from any thread, run in the order of the log.
//
// submit() leaves an operation in an inbox; the holder of the progress token announces it (a bit
// when its description is known, else in full), acts on the log's entries in order, and completes
// what the communicator has resolved. On local rank 0 a LogLeader hears all ranks of the host and
// writes the log.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/peers.h"
#include "collectives/world_shape.h"
#include "hvd/work.h"
#include "runtime/base/mutex.h"
#include "runtime/base/this_thread.h"
#include "runtime/engine/crossed_waits.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/feed.h"
#include "runtime/engine/leader_pulse.h"
#include "runtime/engine/log_leader.h"
#include "runtime/engine/log_words.h"
#include "runtime/engine/progress.h"
#include "runtime/engine/status_writer.h"

namespace hvd {

// One that may be submitted again (Submission::repeats): a hook allocates nothing for it then.
class RepeatedWork : public Work {
 public:
  // Any thread: it is done, and the engine has let go of it. Nobody may be waiting for it.
  virtual bool is_free() const = 0;
};

class Negotiation final : public Feed {
 public:
  // Made by the init thread, whose `status` it is, and whose `calls` in program order are counted
  // there. `links`: number of the log's links between hosts. All outlive this but `words`.
  Negotiation(Progress& progress, Peers& peers, Communicator& communicator, HostLogWords words,
              const WorldShape& shape, uint32_t links, StatusWriter& status, const uint64_t& calls,
              std::chrono::milliseconds collective_timeout);
  ~Negotiation() override;

  // With the token: what lies on a device goes there from now on. It outlives this.
  void set_device(Communicator& device) { device_ = &device; }

  // Any thread. Throws kInvalidArgument without a name, with one that is too long, or when the name
  // is under way here.
  // `self` keeps alive all that a wait needs; the Work holds it weakly.
  std::shared_ptr<RepeatedWork> submit(std::unique_ptr<Submission> submission,
                                       const std::shared_ptr<Negotiation>& self);
  // As it was, of this negotiation's and free. Throws as submit().
  void submit_again(const std::shared_ptr<RepeatedWork>& work);
  // The init thread waits in a synchronous call, or in a step; `what` is for texts. That thread
  // only, with the token. False: not yet, some of what this rank asks for is not out.
  bool say_waiting(const RankWait& wait, const std::string& what);
  void say_done();
  // That call has taken too long. False: who waits knows itself who is missing.
  bool ask_who_is_missing_in_call();
  // Nobody has said it: of those that this rank sees to be missing.
  std::vector<int> missing_in_call(std::vector<int> seen);
  // In a forked child: from now on a Work that is not done throws, instead of touching what is not
  // there. Async-signal-safe.
  void forget_in_child() noexcept { forked_.store(true, std::memory_order_relaxed); }
  // With the token: the links to other hosts are there. Throws kUnavailable when one cannot be had.
  bool linked() { return leader_ == nullptr || leader_->linked(); }
  std::vector<int> missing_links() const {
    return leader_ == nullptr ? std::vector<int>{} : leader_->missing_links();
  }
  // What is in the log, and shutdown() has to see resolved, has taken too long. The same.
  bool ask_who_is_missing_in_log();
  // Fails whatever is not started with this text: this rank leaves. With the token.
  void refuse_waiting(const std::string& why);
  // Nothing of this rank's is under way in a whole epoch, and nothing will be. With the token.
  void leave() {
    if (leader_) leader_->leave();
  }

  bool feed() override;
  bool waiting() const override { return waiting_ > 0 || (leader_ && leader_->waiting()); }
  void epoch_over() override;
  void add_waiting(std::vector<WaitingName>& waiting) override;
  void look() override;
  bool needs(int local_rank) override;
  std::chrono::milliseconds watch(std::vector<pollfd>& descriptors) const override {
    return leader_ ? leader_->watch(descriptors) : std::chrono::milliseconds::max();
  }

 private:
  class Pending;
  using Names = std::unordered_set<std::string_view>;
  using Asked = std::unordered_map<std::string_view, std::shared_ptr<Pending>>;
  struct Known {
    uint32_t id = 0;
    uint64_t hash = 0;
  };

  LogWords& mine() const { return words_.of(me_); }
  const LeaderPulse& look_at_leader();
  void take_in(const std::shared_ptr<Pending>& pending);
  void say_changed();
  bool take_inbox();
  void ask(const std::shared_ptr<Pending>& pending);
  bool announce();
  bool read_log();
  void act_on(const LogWords::Entry& entry);
  bool complete_resolved();
  bool complete_resolved(std::deque<std::shared_ptr<Pending>>& started);
  bool tell_of_launches();
  void let_go(Pending& pending);
  void finish(const std::shared_ptr<Pending>& pending, std::exception_ptr error);
  void finish_asked();
  void say_awaiting(const Pending& pending);
  std::vector<int> missing(const std::string& name, uint64_t asked_at_look);
  std::vector<int> who_did_not_say(uint64_t asked_at_look, std::vector<int> seen);
  bool ask_who_is_missing(const Pending& pending);
  bool ask_who_has_not_acted(uint64_t entry);
  bool ask_coordinator(LogWords::OverdueKind kind, uint64_t overdue);

  Progress& progress_;
  Peers& peers_;
  Communicator& communicator_;
  Communicator* device_ = nullptr;
  const HostLogWords words_;
  const int me_;  // local rank
  const bool one_host_;
  StatusWriter& status_;   // the init thread's
  const uint64_t& calls_;  // the init thread's
  const uint64_t init_thread_ = this_thread_number();
  const std::chrono::milliseconds collective_timeout_;

  Mutex mutex_;
  Names under_way_ GUARDED_BY(mutex_);  // in their Pending
  std::vector<std::shared_ptr<Pending>> inbox_ GUARDED_BY(mutex_);
  std::atomic<bool> inbox_filled_{false};
  std::atomic<bool> forked_{false};

  // Guarded by the progress token.
  size_t waiting_ = 0;                           // submitted and not finished
  Asked asked_;                                  // not in the log yet
  std::vector<std::shared_ptr<Pending>> taken_;  // from the inbox; empty between two looks
  std::deque<std::shared_ptr<Pending>> to_announce_;
  std::deque<std::shared_ptr<Pending>> started_, started_on_device_;
  std::unordered_map<std::string, Known> known_;
  std::vector<std::string> name_of_id_;
  uint64_t changes_ = 0, announced_ = 0, read_ = 0;
  bool over_ = false;
  LeaderPulse leader_pulse_;
  uint64_t asked_at_look_[LogWords::kOverdueKinds] = {};  // of the leader: rank 0, the last time
  std::string refusal_;                                   // why nothing is taken any more
  const Pending* awaiting_ = nullptr;  // which the words say that the init thread waits for

  const std::unique_ptr<LogLeader> leader_;  // local rank 0's
};

}  // namespace hvd
