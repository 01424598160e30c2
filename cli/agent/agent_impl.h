// The state behind run_agent(), and its work in two files: what happens (agent.cc), and what is
// due, up to the end (agent_end.cc).
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "cli/agent/first_look.h"
#include "cli/agent/held_port.h"
#include "cli/agent/host_memory.h"
#include "cli/agent/job_processes.h"
#include "cli/agent/keeper.h"
#include "cli/agent/other_hosts.h"
#include "cli/agent/streams.h"
#include "cli/agent/uplink.h"
#include "cli/agent/workers.h"
#include "cli/frame.h"
#include "cli/loop.h"
#include "cli/ship/shipped.h"
#include "cli/ship/tree_use.h"
#include "cli/signals.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/credentials.h"

namespace hvd {

class Agent {
 public:
  explicit Agent(Kept kept);
  // How hvdrun is reached: here, or from another host as the bootstrap will say, where `key` is
  // this agent's.
  void use(UniqueFd control) { uplink_.use(std::move(control)); }
  void use(std::unique_ptr<AgentKey> key) {
    key_ = std::move(key);
    frames_ = FrameReader(true);  // line feeds may come before, which no start file read
  }
  void use(std::optional<Shipped> shipped) {
    shipped_ = std::move(shipped);
    if (shipped_) trees_.emplace(std::move(shipped_->locks));
  }
  int run();

 private:
  static constexpr std::chrono::milliseconds kBeat{1000};

  void on_lease();
  void on_frame(const FrameReader::Piece& piece);
  void on_bootstrap();
  void look_first(const proto::StartWorkers& start);
  void start_workers(proto::StartWorkers start);
  void say_no_master_port(const proto::StartWorkers& start);
  void find_directory(proto::StartWorkers& start);
  void connect();
  void on_uplink_closed(const std::string& why);
  void on_order(const proto::ToAgent& order);
  void on_worker_ended(int rank);
  void make_memory(const proto::StartWorkers& start);
  void start_epoch(const proto::StartEpoch& start);
  void listen_for_links(const proto::ListenForLinks& order);
  void fill_status(const Worker& worker, proto::RankStatus& status) const;
  void start_some();
  void note_end(std::optional<proto::RankEnd> end);
  void send_ends();
  void end_words_of_ended();
  void begin_end(proto::Ended::Why why, std::string reason, StopPlan plan);
  void describe();
  void say(const std::string& text);
  void beat(TimePoint now);
  void say_what_is_slow(TimePoint now);
  void say_who_was_waited_for();
  void leave_when_done();
  void note_stuck();
  std::chrono::milliseconds stop_grace() const {
    return std::chrono::milliseconds(bootstrap_.stop_grace_ms());
  }
  PortRange port_range() const {
    return {uint16_t(bootstrap_.port_low()), uint16_t(bootstrap_.port_high())};
  }
  bool may_start() const;
  bool ranks_are_over() const;
  std::optional<TimePoint> next_deadline() const;

  Loop loop_;
  Kept kept_;
  SignalReader child_ends_;
  Uplink uplink_;
  std::unique_ptr<AgentKey> key_;   // on another host
  std::optional<Shipped> shipped_;  // to it
  std::optional<TreeUse> trees_;    // of that
  JobProcesses processes_;
  FrameReader frames_{false};
  std::string bootstrap_bytes_;
  proto::Bootstrap bootstrap_;
  HeldPort held_port_;
  bool bootstrapped_ = false;
  std::unique_ptr<HostMemory> memory_;       // a worker's slot is its place in workers_->all()
  std::unique_ptr<OtherHosts> other_hosts_;  // of a job that has them
  std::unique_ptr<FirstLook> first_look_;    // on another host, before they are started
  std::string host_;                         // of which that is
  std::unique_ptr<Workers> workers_;
  std::vector<std::string> command_;  // theirs, as the user gave it
  std::unique_ptr<OutputForwarder> output_;
  StdinFeeder stdin_;
  proto::RankEnds ends_;         // of this turn
  bool held_elsewhere_ = false;  // ranks on other hosts are, by debuggers
  bool orphaned_ = false;        // hvdrun is gone: nobody to report to
  TimePoint next_beat_ = Clock::now() + kBeat;
  proto::Ended ended_;                 // the first reason
  std::optional<TimePoint> finished_;  // the last word is out
};

}  // namespace hvd
