// Who is in the job, decided from events: when workers start, which epoch begins with which worlds,
// and when the job ends.
//
// Pure: events and the time come in, actions with their reasons come out. The owner's loop performs
// them in order and calls apply(TimePassed{}, now) at next_deadline(). A static job is one whose
// size_min is 0: it never goes on with fewer ranks or others. Elsewhere who joins after the start
// is started, waits in init(), and is in the next epoch, within the limits of time that hold at the
// start. Ranks in events and actions are those that workers were started with; a World has the rank
// in its epoch.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/slots.h"
#include "runtime/base/deadline.h"

namespace hvd {

// Why a job has to end. The first cause stays.
enum class EndCause {
  kNone,          // all ranks ended by themselves
  kRankFailed,    // by a signal, a code, or because it could not be started
  kInterrupted,   // INT to hvdrun
  kTerminated,    // TERM to hvdrun
  kHangup,        // HUP to hvdrun
  kQuit,          // QUIT to hvdrun
  kReaderGone,    // nobody reads our output any more
  kTimeLimit,     // --timeout
  kStartTimeout,  // agents or workers did not start in time
  kAgentLost,     // an agent is gone or does not answer
  kOwnFailure,
  kNotStarted,  // refused before any rank was, or a host has no agent
};

namespace event {
struct HostAdded {
  Host host;
  std::vector<Slot> slots;  // behind those there are, on that host; its agent joins later
};  // to a job that is not static
struct AgentJoined {
  int host;
};  // also of a host that was lost: a new one, and all its ranks that were lost start again
struct AgentLost {
  int host;
  std::string reason;
};  // and with it every rank there that had not ended
struct WorkersStarted {
  std::vector<int> ranks;
};
struct NetworkProven {};  // it is known how the hosts reach each other
struct GpusSeen {};       // what is to be said of them was, or is waited for no longer
struct RankClaimed {
  int rank;
};  // the first sign that it uses libhvd
struct EpochWanted {
  std::vector<int> ranks;
};  // they wait in init()
struct RankEnded {
  int rank;
  bool failed;
  std::string how;
};
struct EndAsked {
  EndCause cause;
  int first_signal;
  std::string reason;
};
struct TimePassed {};
}  // namespace event
using Event =
    std::variant<event::HostAdded, event::AgentJoined, event::AgentLost, event::NetworkProven,
                 event::GpusSeen, event::WorkersStarted, event::RankClaimed, event::EpochWanted,
                 event::RankEnded, event::EndAsked, event::TimePassed>;

namespace action {
struct StartWorkers {
  int host;
  std::vector<World> worlds;
};
struct Member {
  int rank;
  World world;
  int host = 0;
};
// On every host that has members of it.
struct StartEpoch {
  uint32_t epoch;
  std::vector<Member> members;  // in the order of their ranks in its world
};
struct RefuseEpoch {
  int host;
  std::vector<int> missing;  // who has not asked
  std::string reason;
  bool timed_out = false;  // else some of them have ended, or all are about to
};  // for all who wait in init() there
struct EndJob {
  EndCause cause;
  int first_signal;
  std::chrono::milliseconds after{0};  // so that survivors can throw, catch and print
  std::string reason;
};
}  // namespace action
using Action =
    std::variant<action::StartWorkers, action::StartEpoch, action::RefuseEpoch, action::EndJob>;

struct MembershipOptions {
  int size_min = 0;  // fewer ranks that are not lost end the job; 0: as many as there are slots
  std::chrono::milliseconds start_timeout{30'000};
  bool hosts_come = false;   // or are lost, as somebody else sees to: that begins with seat()
  bool gpus_unseen = false;  // no worker starts before GpusSeen, which comes within start_timeout
};

class Membership {
 public:
  // `slots` are the job's, with ranks 0, 1, 2, … as assign_slots() gives them.
  Membership(std::vector<Host> hosts, std::vector<Slot> slots, MembershipOptions options,
             TimePoint now);

  // A job on this machine alone starts its workers at once, together with its agent; with other
  // hosts, or GPUs that are unseen, when all agents have joined.
  std::vector<Action> begin(TimePoint now);
  // All hosts are there, and these are the job's slots now: some hosts were one. Before any worker
  // has started; the wait for agents begins anew, and is for NetworkProven, too, if that is to
  // come.
  std::vector<Action> seat(std::vector<Slot> slots, bool network_unproven, TimePoint now);
  std::vector<Action> apply(const Event& event, TimePoint now);
  std::optional<TimePoint> next_deadline() const;

  uint32_t epoch() const { return epoch_; }
  bool ending() const { return cause_ != EndCause::kNone; }
  bool gpus_unseen() const { return gpus_unseen_; }
  EndCause cause() const { return cause_; }
  int living() const;

 private:
  enum class State { kPlanned, kStarting, kRunning, kEnded };
  struct Rank {
    explicit Rank(Slot its_slot) : slot(std::move(its_slot)) {}
    Slot slot;  // as it was started
    State state = State::kPlanned;
    bool claimed = false;
    bool waits = false;  // in init(), for the next epoch
    bool lost = false;   // ended by a failure, or with its agent
    World world;         // of the last epoch it was in; epoch 0: of none
  };
  struct HostState {
    Host host;
    bool joined = false;
    bool lost = false;  // its agent, and so its ranks
    bool has_workers = false;
    bool added = false;  // the start does not wait for it
  };

  void on(const event::HostAdded& event, TimePoint now);
  void on(const event::AgentJoined& event, TimePoint now);
  void on(const event::AgentLost& event, TimePoint now);
  void on(const event::NetworkProven& event, TimePoint now);
  void on(const event::GpusSeen& event, TimePoint now);
  void on(const event::WorkersStarted& event, TimePoint now);
  void on(const event::RankClaimed& event, TimePoint now);
  void on(const event::EpochWanted& event, TimePoint now);
  void on(const event::RankEnded& event, TimePoint now);
  void on(const event::EndAsked& event, TimePoint now);
  void on(const event::TimePassed& event, TimePoint now);

  void take(std::vector<Slot> slots);
  std::chrono::milliseconds last_words() const;
  bool too_few() const;  // ranks are not lost
  static bool is_awaited(const HostState& host);
  void decide_start(TimePoint now);
  void start_workers(TimePoint now);
  void decide_epoch();
  void start_epoch();
  void refuse_epoch(const std::vector<int>& missing, const std::string& reason,
                    bool timed_out = false);
  void end_job(EndCause cause, int first_signal, std::chrono::milliseconds after,
               std::string reason);
  std::string names(const std::vector<int>& ranks) const;

  const MembershipOptions options_;
  std::vector<HostState> hosts_;
  std::vector<Rank> ranks_;
  uint32_t epoch_ = 0;
  EndCause cause_ = EndCause::kNone;  // the first
  std::string end_reason_;
  bool network_unproven_ = false, gpus_unseen_, started_ = false;
  std::optional<TimePoint> agents_deadline_, workers_deadline_, init_deadline_;
  std::vector<Action> actions_;  // of the event being applied
};

}  // namespace hvd
