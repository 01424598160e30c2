// The state behind supervise(), and its work in six files: the start of its agents
// (supervisor_start.cc) and what is shown of it (supervisor_progress.cc), how their hosts reach
// each other (supervisor_network.cc), what happens (supervisor.cc), agents and hosts that are lost
// (supervisor_lost.cc), and what is due, up to the end (supervisor_end.cc).
#pragma once

#include <unistd.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cli/agent/descendants.h"
#include "cli/awaited_hosts.h"
#include "cli/epoch_relay.h"
#include "cli/gpu_look.h"
#include "cli/host_agent.h"
#include "cli/host_choice.h"
#include "cli/host_identity.h"
#include "cli/job_log.h"
#include "cli/job_record.h"
#include "cli/loop.h"
#include "cli/network_proof.h"
#include "cli/other_pairs.h"
#include "cli/output.h"
#include "cli/remote_errand.h"
#include "cli/remote_hosts.h"
#include "cli/signals.h"
#include "cli/stdin_reader.h"
#include "cli/supervisor.h"
#include "rendezvous/credentials.h"
#include "rendezvous/link_handshake.h"
#include "rendezvous/membership.h"
#include "rendezvous/server.h"
#include "runtime/base/job_clock.h"

namespace hvd {

class Supervisor {
 public:
  Supervisor(const JobSpec& spec, const std::vector<Slot>& slots, const StartState& start);
  // Starts the agents. After an exception, of run() too, this must not be destroyed.
  void begin(Carrier& carrier, const ShipOffer* offer);
  ExitStatus run();
  // All that can be done after one: what was said before goes out, as long as it is read.
  void write_what_was_said() noexcept;

 private:
  // events
  void on_signals();
  void reap();
  void on_stop_asked();
  void on_interrupt();
  void end_what_is_left(int first_signal);
  [[noreturn]] void leave();
  void write_early(const JobResult& known, bool is_last);
  void on_control();
  void on_message(HostAgent& agent, const proto::FromAgent& message);
  void on_stream_lost(HostAgent& agent);
  void on_attached(HostAgent& agent, int session, const proto::Attached& attached);
  void on_ended(HostAgent& agent, const proto::Ended& ended);
  void say_threads(const HostAgent& agent, int threads_each);
  void say_limits(const HostAgent& agent, const proto::Started& started);
  void on_states(HostAgent& agent, const proto::RankStates& states);
  void on_suspended(HostAgent& agent);
  void on_held(HostAgent& agent, const proto::Held& held);
  void on_output(HostAgent& agent, std::string_view bytes);
  void on_words(int number, std::string_view line);
  void on_sink();
  void on_stdin();
  void on_stdin_taken(HostAgent& agent, size_t bytes);
  void on_watch(HostAgent& agent, AgentWatch::Due due);
  void on_keeper_gone(HostAgent& agent, int status);
  void on_deadlines(TimePoint now);

  // what follows from them
  void tell(const Event& event) { perform(membership_.apply(event, clock_.time(Clock::now()))); }
  void tell(const std::vector<Event>& events) {
    for (const Event& event : events) tell(event);
  }
  void perform(const std::vector<Action>& actions);
  void perform(const action::StartWorkers& start);
  void perform(const action::StartEpoch& start);
  void perform(const action::RefuseEpoch& refuse);
  void perform(const action::EndJob& end);
  void limit_end(const action::EndJob& end);
  void limit_readers(const action::EndJob& end);
  bool no_rank_runs() const;
  std::chrono::milliseconds kind_patience() const {
    return std::max(spec_.stop_grace, kImpatience);
  }
  void order_all(const proto::ToAgent& order);
  bool ask_all(const proto::ToAgent& order);
  bool all_answered() const;
  void begin_stdin();
  void give_stdin(FrameKind kind, std::string_view bytes);
  void give_credit();
  void note_held();
  void lose(HostAgent& agent, const std::string& why);
  void lose_contact(HostAgent& agent, const std::string& why);
  void note_lost(TimePoint now);
  bool all_fell_silent_with(HostAgent& agent) const;
  void watch_for_stop() {
    loop_.watch(stop_asked_.fd(), EPOLLIN, [this](uint32_t) { on_stop_asked(); });
  }
  void suspend();
  void resume();
  void begin_time_out(TimePoint now);
  void time_out(TimePoint now);
  void reach_time_limit();
  void say_why(TimePoint now);

  // the end
  bool over() const;
  void end_ssh();
  void kill_left(const HostAgent& agent);
  void sweep();
  void write_out();
  JobResult result() const;
  void note_what_never_came();
  ExitStatus finish();
  RendezvousServer::Remote way_in();
  void look_at_gpus();
  void start_agents(Carrier& carrier, const ShipOffer* offer);
  HostAgent& add_agent(int host, AgentChannels channels);
  void on_remote_started(int host, AgentChannels channels, const proto::Bootstrap& way_in,
                         const Hello& hello);
  void on_remote_failed(const std::vector<FailedHost>& failed);
  void clean_after(const HostAgent& agent);
  void on_all_hosts_there();
  void close_door();
  SettledHosts settle();
  void retire_idle_agents();
  void say_progress(TimePoint now);
  void note_who_is_late(EndCause cause);
  std::vector<AwaitedHost> late_hosts(TimePoint now, const std::string& advice) const;
  void say_are_you_there(TimePoint now);
  std::string master_address() const;

  // the network
  bool in_one_network() const;
  bool begin_links();
  void prove_network(TimePoint now);
  void on_reached(HostAgent& agent, const proto::Reached& reached);
  void on_listening(HostAgent& agent, const proto::Listening& listening);
  HostAgent* agent_of(int host);
  bool reads_stdin(const HostAgent& agent) const;
  bool is_on(int rank, const HostAgent& agent) const;
  bool any_paused() const;
  void pause_while_full();
  // What agents can cause without end: dropped, and counted, while standard error is not read.
  void try_say(const std::string& words);
  void say_unsaid();
  void say_new_keys();
  void say(const std::string& words) { output_.say("hvdrun: " + words + "\n", Clock::now()); }
  std::optional<TimePoint> job_deadline() const;
  std::optional<TimePoint> next_deadline() const;

  static constexpr std::chrono::milliseconds kImpatience{200};  // with a reader, at least
  // To a question that holds something up.
  static constexpr std::chrono::milliseconds kAnswerLimit{1000};
  // Is why the job ends said now, or by the report?
  static constexpr std::chrono::milliseconds kReportSoon{500};

  JobSpec spec_;                     // its slots and size are counted when all hosts are there
  std::vector<Slot> slots_;          // settled when all hosts are there
  std::map<int, HostPlace> places_;  // of those, from the first order to start workers on
  const StartState& start_;
  const HostIdentity here_ = look_at_this_host();
  Loop loop_;
  SignalReader signals_;
  SignalReader stop_asked_;  // whether a SIGTSTP is pending
  Output output_;
  JobLog log_;
  const Strangers strangers_;
  JobRecord record_;
  const std::optional<JobAuthority> authority_;  // of a job with remote hosts
  RendezvousServer server_;
  std::vector<char> read_buffer_;
  std::vector<std::unique_ptr<HostAgent>> agents_;   // of the hosts that have slots, in their order
  std::vector<std::unique_ptr<HostAgent>> retired_;  // of hosts that have none after all
  JobClock clock_;  // its time is what the Membership and the time limit know
  Membership membership_;
  const Secret link_secret_ = make_link_secret();
  EpochRelay relay_;
  NetworkProof network_;
  OtherPairs other_pairs_;  // of hosts, once it is proven
  int unreached_ = 0;       // of them
  std::optional<RemoteHosts> remote_hosts_;
  std::optional<GpuLook> gpu_look_;       // at those of this machine, until the job's end
  std::optional<RemoteErrand> cleaning_;  // of hosts that are cut off
  std::string address_here_;              // as the first host elsewhere sees hvdrun
  std::optional<TimePoint> say_progress_at_, are_you_there_at_;
  std::optional<StdinReader> stdin_;
  size_t stdin_credited_ = 0;  // bytes that all who read have taken
  int interrupts_ = 0;
  size_t unsaid_ = 0;             // lines that try_say() dropped
  int64_t never_came_bytes_ = 0;  // of output, from hosts whose agents had said their last word
  bool output_lost_said_ = false, end_said_ = false;
  std::map<int, int> threads_;                 // for each rank of a host that has started some
  bool result_written_ = false;                // the whole one, by finish()
  std::set<int> held_said_;                    // ranks
  std::set<int> limits_said_;                  // RLIMIT_…
  std::vector<std::string> new_keys_;          // that ssh has taken, and nobody was told of
  std::optional<TimePoint> time_limit_;        // by the job's clock
  std::optional<TimePoint> answer_by_;         // before a time-out is carried out
  std::optional<TimePoint> suspend_deadline_;  // for ranks to stand still, before we stop
  std::optional<TimePoint> say_why_at_;        // unless the job is over by then
};

}  // namespace hvd
