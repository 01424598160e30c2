// The state behind supervise(), and its work in two files: what happens (supervisor.cc), and what
// is due, up to the end (supervisor_end.cc).
#pragma once

#include <unistd.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cli/agent/descendants.h"
#include "cli/agent_pipes.h"
#include "cli/agent_watch.h"
#include "cli/job_log.h"
#include "cli/job_record.h"
#include "cli/loop.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "cli/stdin_reader.h"
#include "cli/supervisor.h"
#include "rendezvous/membership.h"
#include "rendezvous/server.h"
#include "runtime/base/job_clock.h"

namespace hvd {

class Supervisor {
 public:
  Supervisor(const JobSpec& spec, const std::vector<Slot>& slots, const StartState& start,
             Carrier& carrier);
  ExitStatus run();

 private:
  // events
  void on_signals();
  void on_interrupt();
  void on_control();
  void on_message(const proto::FromAgent& message);
  void on_ended(const proto::Ended& ended);
  void say_threads(int threads_each);
  void on_states(const proto::RankStates& states);
  void on_held(const proto::Held& held);
  void on_output(std::string_view bytes);
  void on_sink();
  void on_stdin();
  void on_watch(AgentWatch::Due due);
  void on_keeper_gone(int status);
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
  void limit_readers(std::chrono::milliseconds patience, bool only_still);
  std::chrono::milliseconds kind_patience() const {
    return std::max(spec_.stop_grace, kImpatience);
  }
  void order(const proto::ToAgent& order);
  void begin_stdin();
  void suspend();
  void begin_time_out(TimePoint now);
  void time_out(TimePoint now);
  void reach_time_limit();

  // the end
  bool over() const;
  static std::map<pid_t, unsigned long long> processes_below();
  bool is_stranger(pid_t child) const;
  void sweep();
  void write_out();
  ExitStatus finish();
  std::string agent_name() const { return "the agent on " + host().name; }
  const Host& host() const { return spec_.hosts.at(size_t(host_)); }
  void say(const std::string& words) { output_.say("hvdrun: " + words + "\n", Clock::now()); }
  std::optional<TimePoint> job_deadline() const;
  std::optional<TimePoint> next_deadline() const;

  static constexpr std::chrono::milliseconds kImpatience{200};  // with a reader, at least
  // To a question that holds something up.
  static constexpr std::chrono::milliseconds kAnswerLimit{1000};

  const JobSpec& spec_;
  const StartState& start_;
  Loop loop_;
  SignalReader signals_;
  Output output_;
  JobLog log_;
  const std::map<pid_t, unsigned long long> earlier_ = processes_below();  // and when each began
  const int host_;  // the agent's, an index into the hosts: the one that has the slots
  AgentPipes agent_;
  RendezvousServer server_;
  JobClock clock_;  // its time is what the Membership and the time limit know
  Membership membership_;
  JobRecord record_;
  AgentWatch watch_;
  std::optional<StdinReader> stdin_;
  proto::Bootstrap bootstrap_;
  bool bootstrap_sent_ = false;
  std::optional<int> session_;  // the agent's, once it has attached
  pid_t agent_process_ = 0;     // 0: not known yet
  std::vector<proto::ToAgent> early_orders_;
  bool control_open_ = true;
  bool agent_ended_ = false;    // it said so itself
  bool keeper_killed_ = false;  // by us
  bool keeper_ended_ = false;   // by itself: nobody is left whom it could end
  int interrupts_ = 0;
  bool output_lost_said_ = false, threads_said_ = false;
  std::set<int> held_said_;              // ranks
  std::optional<TimePoint> time_limit_;  // by the job's clock
  std::optional<TimePoint> answer_by_;   // before a time-out is carried out
  std::optional<TimePoint> suspend_deadline_;
  std::optional<std::chrono::milliseconds> reader_patience_;  // while the job ends; else for ever
  bool only_still_readers_ = false;                           // slow ones are waited for
  std::optional<TimePoint> give_up_at_;                       // readers that stand still
  std::optional<TimePoint> say_why_at_;                       // unless the job is over by then
  std::optional<TimePoint> keeper_gone_at_;
};

}  // namespace hvd
