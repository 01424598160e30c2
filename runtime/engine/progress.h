// Whoever waits makes progress: the only place in a worker that waits for another rank.
//
// The holder of the progress token advances all communicators of the rank in turn. A waiting thread
// takes the token, spins for a while if there are CPUs enough, then sleeps on the doorbell without
// it; further waiting threads sleep until theirs is done. The engine thread is the holder of last
// resort: it is rung only while something is under way and nobody waits, or when the agent says so,
// and sleeps but where somebody wants to be looked at at once, for the moment that this may last.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/peers.h"
#include "runtime/base/deadline.h"
#include "runtime/engine/epoch_end.h"
#include "runtime/engine/feed.h"
#include "runtime/engine/progress_token.h"
#include "runtime/engine/stall_inspector.h"

namespace hvd {

struct ProgressOptions {
  std::chrono::milliseconds stall_warning{60'000};    // 0: no warning
  std::chrono::milliseconds stall_shutdown{0};        // 0: never
  std::function<void(const std::string&)> warn = {};  // any thread, with the token; must not block
  // For how long a device's library is waited for: in one operation, and to connect; 0: no limit.
  std::chrono::milliseconds device_timeout{0}, connect_timeout{0};
};

inline constexpr std::string_view kOtherRanks = "the other ranks",
                                  kDevice = "NCCL, which names no rank,";

// What a thread waits for: one of the first three. On the waiter's stack.
struct Awaited {
  const Operation* operation = nullptr;  // has an outcome
  const std::atomic<bool>* flag = nullptr;
  std::function<bool()> when;                 // with the token
  std::function<std::string()> what;          // for texts: "allreduce \"loss\""
  std::function<std::vector<int>()> missing;  // ranks of the job it waits for, with the token
  std::string_view otherwise = kOtherRanks;   // for texts, where none of them is known
  bool on_device = false;                     // what the device is in the midst of belongs in there
  std::chrono::milliseconds timeout{0};       // while all peers live; 0: none
  std::function<bool()> told_by_other;        // asks a rank that knows more to say who is missing;
                                              // false: there is none
  std::function<bool()> reported_by_other;    // the stall check: who reports the log, reports it
  std::function<void(TimePoint)> on_sleep;    // before each sleep, and where it never sleeps now
                                              // and then, with the token

  // Progress's own. `done` is the holder's last touch.
  std::atomic<bool> done{false};
  TimePoint since{};
  Clock::duration waited{};
};

class Progress {
 public:
  Progress(Peers& peers, ProgressOptions options);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Takes the token; what else stands in this block is for its holder.
  void hold() {
    if (!token_.try_take()) [[unlikely]]
      token_.take_urgently();
    disarm();
  }
  void leave();
  // One bounded round over everything; true if anything moved.
  bool advance();
  // One communicator alone, for a few tries of an operation that is nearly there. An error of a
  // communicator ends the process: it cannot do its part any more, and that is what a death says.
  static bool advance(Communicator& communicator) noexcept { return communicator.progress(); }
  // Returns when it is done, without the token. When its timeout passes the epoch is broken off,
  // with a text that names whom it waited for; only time in which this process ran counts.
  void wait_and_leave(Awaited& awaited);
  // Also while the epoch ends, or when it is over: then its operations fail like all others'.
  void add(Communicator& communicator) {
    communicators_.push_back(&communicator);
    end_.take_in(communicator);
  }
  void add(Feed& feed) {
    feeds_.push_back(&feed);
    if (told_over_) feed.epoch_over();
  }
  void remove(const Communicator& communicator) { std::erase(communicators_, &communicator); }
  void remove(const Feed& feed) { std::erase(feeds_, &feed); }
  EpochEnd& end() { return end_; }
  std::span<Communicator* const> communicators() const { return communicators_; }
  // The agent's answers are waited for too (a segment), until it is called with false.
  void watch_agent(bool watch);

  // All waits are counted by this clock, which stands while the job is suspended or a debugger
  // holds one of its ranks.
  TimePoint job_time(TimePoint now) const;
  // Breaks the epoch off: that rank of the job has waited for so long.
  void time_out(int waiting, std::chrono::milliseconds timeout, const std::vector<int>& missing,
                const std::string& what, std::string_view otherwise = kOtherRanks);

  // Any thread, without the token: something was left for a feed. Serves it, or has the holder.
  void kick();
  // The same, and where no CPU is idle goes on while anything moves: the engine thread would do the
  // same work on the same CPUs, later, when the caches have lost what the caller just wrote.
  void kick_and_work();
  // Any thread, without the token: returns once failures may be thrown.
  void wait_until_over();
  const std::atomic<bool>& over() const { return end_.over(); }
  // With the token: does a waiting thread get anything by spinning, or does it keep a peer from
  // running?
  bool spins() const { return may_spin_ && !shares_cpu_; }

  void start_engine_thread();
  void stop_engine_thread();

 private:
  enum class Pause { kSpin, kYield, kSleep };
  // How long nothing has moved for one waiting thread, and what to do about it.
  struct Pacing {
    unsigned tries = 0, busy = 0;  // rounds in which nothing moved, and others
    TimePoint idle_since{};
  };

  // A wait for what a device does, and for how long it has been one.
  struct OnDevice {
    const Communicator* communicator;
    DeviceWait wait;
    Clock::duration waited{};
  };

  Pause next_pause(Pacing& pacing);
  bool is_peer_here();
  bool advance_all();
  bool break_off(const std::exception& error);
  void settle_awaited();
  static bool is_done(const Awaited& awaited);
  bool pass_on(Awaited& awaited);
  void look_out(Awaited& awaited, Clock::duration before);
  bool rest(Awaited& awaited);
  bool outstanding() const;
  uint32_t sleepers_wanted() const;
  void arm(uint32_t sleepers);
  void disarm() {
    if (armed_ != 0) [[unlikely]]
      lower_arms();
  }
  void lower_arms();
  void say_asleep();
  void ring_engine_thread();
  void drain(Sleeper sleeper);
  void watch_links(Sleeper sleeper);
  std::chrono::milliseconds watch_all(std::vector<pollfd>& links) const;
  bool has_unwatched_links(Sleeper sleeper);
  void poll_doorbell(Sleeper sleeper, bool links, bool agent_answers,
                     std::chrono::milliseconds most);
  std::chrono::milliseconds backstop(const Awaited& awaited) const;

  void tick(TimePoint now);
  void look_for_timeouts(TimePoint now);
  void look_at_devices(Clock::duration step);
  void look_for_left_ranks();
  void look_for_stalls(TimePoint now);

  void run_engine_thread(const std::stop_token& stop);
  void engine_round(const std::stop_token& stop, TimePoint* idle_since);

  Peers& peers_;
  RankWords& words_;
  const ProgressOptions options_;
  const bool may_spin_;
  const bool idle_cpus_;  // besides one for each rank

  ProgressToken token_;
  // Guarded by the token.
  std::vector<Communicator*> communicators_;
  std::vector<Feed*> feeds_;
  std::vector<Awaited*> awaited_;
  EpochEnd end_;
  StallInspector stall_inspector_;
  uint32_t armed_ = 0;       // sleepers that words_.asleep names
  int slept_ = 0;            // of awaited_
  bool shares_cpu_ = false;  // a peer waited last on the CPU that this rank waits on
  TimePoint shares_cpu_until_{};
  int agent_answers_ = 0;
  std::vector<pollfd> links_wanted_;
  std::chrono::milliseconds links_again_{};
  TimePoint look_at_[kSleepers] = {};  // when a sleeper looks again at the latest
  bool told_over_ = false;
  TimePoint last_tick_{}, last_stall_look_{};
  std::vector<OnDevice> on_devices_;

  // What each sleeper polls beside its doorbell: written by it, with the token, and read by others
  // with the token. The engine thread polls it only while it says so.
  std::vector<pollfd> links_[kSleepers];
  std::atomic<bool> engine_watches_{false};
  std::vector<pollfd> polled_[kSleepers];  // the sleeper's own

  std::atomic<bool> engine_rung_{false};
  std::jthread engine_thread_;
};

}  // namespace hvd
