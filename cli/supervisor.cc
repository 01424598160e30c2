#include "cli/supervisor.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "cli/agent/descendants.h"
#include "cli/agent/process_state.h"
#include "cli/agent_pipes.h"
#include "cli/agent_watch.h"
#include "cli/failure_report.h"
#include "cli/job_record.h"
#include "cli/loop.h"
#include "cli/messages.h"
#include "cli/output.h"
#include "cli/result_file.h"
#include "cli/signals.h"
#include "cli/stdin_reader.h"
#include "rendezvous/membership.h"
#include "rendezvous/server.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLastWords{1000};  // after the keeper's death, still in the channels
constexpr milliseconds kSweepLimit{10'000};
constexpr milliseconds kAnswerLimit{1000};  // to a question that holds something up
constexpr milliseconds kReportSoon{500};    // is why the job ends said at once, or by the report?
constexpr int kInterruptsMax = 3;

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
  void on_output(std::string_view bytes);
  void on_sink();
  void on_stdin();
  void on_watch(AgentWatch::Due due);
  void on_keeper_gone(int status);
  void on_deadlines(TimePoint now);

  // what follows from them
  void tell(const Event& event) { perform(membership_.apply(event, Clock::now())); }
  void tell(const std::vector<Event>& events) {
    for (const Event& event : events) tell(event);
  }
  void perform(const std::vector<Action>& actions);
  void perform(const action::StartWorkers& start);
  void perform(const action::StartEpoch& start);
  void perform(const action::RefuseEpoch& refuse);
  void perform(const action::EndJob& end);
  void order(const proto::ToAgent& order);
  void begin_stdin();
  void begin_time_limit_end();
  void suspend();

  // the end
  bool over() const;
  void sweep();
  void write_out();
  ExitStatus finish();
  std::string agent_name() const { return "the agent on " + spec_.hosts.front().name; }
  void say(const std::string& words) { output_.say("hvdrun: " + words + "\n", Clock::now()); }
  std::optional<TimePoint> next_deadline() const;

  const JobSpec& spec_;
  const StartState& start_;
  Loop loop_;
  SignalReader signals_;
  Output output_;
  AgentPipes agent_;
  RendezvousServer server_;
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
  bool agent_ended_ = false;  // it said so itself
  int interrupts_ = 0;
  bool output_lost_said_ = false, threads_said_ = false;
  std::optional<TimePoint> time_limit_, states_deadline_, suspend_deadline_;
  std::optional<TimePoint> say_why_at_;  // unless the job is over by then
  std::optional<TimePoint> keeper_gone_at_;
};

Supervisor::Supervisor(const JobSpec& spec, const std::vector<Slot>& slots, const StartState& start,
                       Carrier& carrier)
    : spec_(spec),
      start_(start),
      signals_({SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT}, start.ignored_signals),
      output_(OutputOptions::of(spec)),
      agent_(loop_, carrier.start_agent(spec.hosts.front()),
             {[this](std::string_view bytes) { on_output(bytes); },
              [this](std::string_view words) {
                output_.say("hvdrun: " + spec_.hosts.front().name + ": " + std::string(words),
                            Clock::now());
              }}),
      server_(agent_.take_control()),
      membership_(spec.hosts, slots, {.size_min = 0, .start_timeout = spec.start_timeout},
                  Clock::now()),
      record_(spec, slots, Clock::now()),
      watch_(spec.agent_timeout, Clock::now()) {
  fault_point("hvdrun_agent_started");
  loop_.watch(signals_.fd(), EPOLLIN, [this](uint32_t) { on_signals(); });
  loop_.watch(server_.wake_fd(), EPOLLIN, [this](uint32_t) { on_control(); });
  for (const auto& sink : output_.sinks())
    loop_.watch(sink->wake_fd(), EPOLLIN, [this](uint32_t) { on_sink(); });
  bootstrap_.set_host(0);
  bootstrap_.set_job(record_.job());
  bootstrap_.set_stop_grace_ms(int(spec.stop_grace.count()));
  perform(membership_.begin(Clock::now()));
  agent_.send_frame(FrameKind::kBootstrap, bootstrap_.SerializeAsString());
  bootstrap_sent_ = true;
  bootstrap_.clear_start();
  begin_stdin();
  if (spec.timeout.count() > 0) time_limit_ = Clock::now() + spec.timeout;
  fault_point("hvdrun_bootstrap_sent");
}

void Supervisor::begin_stdin() {
  if (spec_.stdin_mode == StdinMode::kNone) return;
  if (stdin_is_empty()) return agent_.send_frame(FrameKind::kStdinEof, {});
  stdin_.emplace();
  loop_.watch(stdin_->wake_fd(), EPOLLIN, [this](uint32_t) { on_stdin(); });
}

void Supervisor::perform(const std::vector<Action>& actions) {
  for (const Action& action : actions)
    std::visit([this](const auto& one) { perform(one); }, action);
}

void Supervisor::perform(const action::StartWorkers& start) {
  proto::StartWorkers message = start_message(spec_, start_, start.worlds);
  if (!bootstrap_sent_) {  // no round trip: workers start while the control stream is set up
    *bootstrap_.mutable_start() = std::move(message);
    return;
  }
  proto::ToAgent to_agent;
  *to_agent.mutable_start() = std::move(message);
  order(to_agent);
}

void Supervisor::perform(const action::StartEpoch& start) { order(to_message(start)); }

void Supervisor::perform(const action::RefuseEpoch& refuse) {
  record_.note_init_refused(refuse.reason);
  order(to_message(refuse));
}

void Supervisor::perform(const action::EndJob& end) {
  const bool first = record_.note_cause(end.cause, end.reason);
  if (first && end.cause == EndCause::kRankFailed) say_why_at_ = Clock::now() + kReportSoon;
  if (end.cause == EndCause::kStartTimeout) watch_.hurry();  // it may be the agent that is stuck
  order(to_message(end));
}

void Supervisor::order(const proto::ToAgent& order) {
  if (session_)
    server_.send(*session_, order);
  else
    early_orders_.push_back(order);
}

void Supervisor::on_signals() {
  for (int signal : signals_.take()) {
    switch (signal) {
      case SIGCHLD:
        reap_all([this](pid_t pid, int status) {
          if (pid == agent_.pid()) on_keeper_gone(status);
        });
        break;
      case SIGINT:
        on_interrupt();
        break;
      case SIGTERM:
        tell(event::EndAsked{EndCause::kTerminated, SIGTERM, "hvdrun was terminated"});
        break;
      case SIGHUP:
        tell(event::EndAsked{EndCause::kHangup, SIGTERM, "hvdrun's terminal hung up"});
        break;
      case SIGTSTP: {
        if (membership_.ending()) break;
        proto::ToAgent message;
        message.mutable_suspend();
        order(message);
        suspend_deadline_ = Clock::now() + kAnswerLimit;
        break;
      }
      case SIGCONT:
        watch_.heard();
        if (stdin_) stdin_->continued();
        break;
    }
  }
}

void Supervisor::on_interrupt() {
  ++interrupts_;
  if (interrupts_ == 1) say("interrupted; ending the ranks (again: kill them now)");
  if (interrupts_ >= kInterruptsMax) die_by(SIGINT);  // the agent sees the lease close
  tell(event::EndAsked{EndCause::kInterrupted, interrupts_ > 1 ? SIGKILL : SIGINT,
                       "hvdrun was interrupted"});
}

void Supervisor::on_control() {
  for (const RendezvousServer::Incoming& news : server_.take()) {
    if (!session_) {
      session_ = news.session;
      for (const proto::ToAgent& early : early_orders_) order(early);
      early_orders_.clear();
    }
    if (!news.messages.empty()) watch_.heard();
    for (const proto::FromAgent& message : news.messages) on_message(message);
    if (news.closed) control_open_ = false;
  }
}

void Supervisor::on_message(const proto::FromAgent& message) {
  switch (message.what_case()) {
    case proto::FromAgent::kAttached:
      agent_process_ = pid_t(message.attached().agent_pid());
      tell(event::AgentJoined{message.attached().host()});
      break;
    case proto::FromAgent::kStarted:
      say_threads(message.started().threads_each());
      tell(record_.note(message.started()));
      break;
    case proto::FromAgent::kSpawnFailed:
      tell(record_.note(message.spawn_failed()));
      break;
    case proto::FromAgent::kEnds:
      tell(record_.note(message.ends()));
      break;
    case proto::FromAgent::kClaimed:
      tell(event::RankClaimed{message.claimed().rank()});
      break;
    case proto::FromAgent::kEpochWanted: {
      const auto& ranks = message.epoch_wanted().ranks();
      tell(event::EpochWanted{{ranks.begin(), ranks.end()}});
      break;
    }
    case proto::FromAgent::kStdinTaken:
      if (stdin_) stdin_->give_credit(size_t(message.stdin_taken().bytes()));
      break;
    case proto::FromAgent::kSuspended:
      if (suspend_deadline_) suspend();
      break;
    case proto::FromAgent::kStates:
      on_states(message.states());
      break;
    case proto::FromAgent::kSaid:
      say(message.said().text());
      break;
    case proto::FromAgent::kEnded:
      on_ended(message.ended());
      break;
    case proto::FromAgent::kBeat:
    case proto::FromAgent::WHAT_NOT_SET:
      break;
  }
}

// Said once: programs that would use all CPUs in every rank get their share, and the user should
// know.
void Supervisor::say_threads(int threads_each) {
  if (threads_each == 0 || spec_.size == 1 || std::exchange(threads_said_, true)) return;
  say(threads_note(threads_each));
}

void Supervisor::on_ended(const proto::Ended& ended) {
  fault_point("hvdrun_agent_ended");
  agent_ended_ = true;
  watch_.expect_end(Clock::now());
  const bool by_itself =
      ended.why() == proto::Ended::KEEPER_LOST || ended.why() == proto::Ended::LEASE_LOST ||
      ended.why() == proto::Ended::SIGNALLED || ended.why() == proto::Ended::FAILED;
  if (by_itself)
    record_.note_cause(EndCause::kOwnFailure, agent_name() + " ended the job: " + ended.reason());
  for (const std::string& words : remarks(ended)) say(words);
}

void Supervisor::on_states(const proto::RankStates& states) {
  if (!states_deadline_) return;
  for (const proto::RankStatus& one : states.ranks()) say(describe(one));
  begin_time_limit_end();
}

void Supervisor::begin_time_limit_end() {
  states_deadline_.reset();
  char limit[64];
  std::snprintf(limit, sizeof limit, "time limit of %g s reached (--timeout)",
                double(spec_.timeout.count()) / 1e3);
  tell(event::EndAsked{EndCause::kTimeLimit, SIGTERM, limit});
}

void Supervisor::suspend() {
  suspend_deadline_.reset();
  output_.flush();
  const TimePoint before = Clock::now();
  stop_by_tstp();
  const auto away = Clock::now() - before;
  if (time_limit_) *time_limit_ += away;
  if (states_deadline_) *states_deadline_ += away;
  proto::ToAgent message;
  message.mutable_resume();
  order(message);
  watch_.heard();
  if (stdin_) stdin_->continued();
}

void Supervisor::on_output(std::string_view bytes) {
  output_.feed(bytes, Clock::now());
  output_.flush();
  if (output_.full()) agent_.pause_output();
}

void Supervisor::on_sink() {
  for (const auto& sink : output_.sinks()) sink->clear_wake();
  if (output_.standard_output_error() == EPIPE && !membership_.ending())
    tell(event::EndAsked{EndCause::kReaderGone, SIGTERM, "the reader of the output is gone"});
  const std::string error = output_.other_error();
  if (!error.empty() && !output_lost_said_) {
    output_lost_said_ = true;
    say(error + "; what comes is dropped and the exit status will not be 0");
  }
  if (agent_.output_paused() && !output_.full()) agent_.resume_output();
}

void Supervisor::on_stdin() {
  const StdinReader::Taken taken = stdin_->take();
  if (!taken.bytes.empty()) agent_.send_frame(FrameKind::kStdinData, taken.bytes);
  if (!taken.end) return;
  agent_.send_frame(FrameKind::kStdinEof, {});
  loop_.unwatch(stdin_->wake_fd());
}

void Supervisor::on_watch(AgentWatch::Due due) {
  const std::string who = agent_name();
  const std::string silence = std::to_string(watch_.silent_ticks()) + " s";
  switch (due) {
    case AgentWatch::Due::kNothing:
      break;
    case AgentWatch::Due::kSaySilent:
      say(who + " has not answered for " + silence);
      break;
    case AgentWatch::Due::kCloseLease:
      if (held_by_debugger(agent_process_)) return watch_.heard();
      tell(event::AgentLost{0, who + " did not answer for " + silence + " (--agent-timeout)"});
      agent_.close_lease();
      watch_.expect_end(Clock::now());
      break;
    case AgentWatch::Due::kKillKeeper:
      say(agent_ended_ ? "the keeper does not end; killing it"
                       : "the agent and its keeper do not answer; killing them");
      kill(agent_.pid(),
           SIGKILL);  // not reaped yet, so the pid is its own; what it leaves comes to us
      break;
  }
}

void Supervisor::on_keeper_gone(int status) {
  keeper_gone_at_ = Clock::now();
  watch_.keeper_gone();
  if (WIFSIGNALED(status))
    say("the keeper was killed by " + signal_name(WTERMSIG(status)) + "; the job is ended");
}

void Supervisor::on_deadlines(TimePoint now) {
  const auto due = [&](std::optional<TimePoint>& deadline) {
    if (!deadline || now < *deadline) return false;
    deadline.reset();
    return true;
  };
  if (due(time_limit_) && !membership_.ending()) {
    proto::ToAgent message;
    message.mutable_describe();
    order(message);
    states_deadline_ = now + kAnswerLimit;
  }
  if (due(states_deadline_)) begin_time_limit_end();
  if (due(suspend_deadline_)) suspend();
  if (due(say_why_at_) && record_.anyone_runs())
    say(record_.first_failure() + "; ending the others");
  on_watch(watch_.tick(now));
  const auto member_deadline = membership_.next_deadline();
  if (member_deadline && now >= *member_deadline) tell(event::TimePassed{});
}

bool Supervisor::over() const {
  if (!keeper_gone_at_) return false;
  if (agent_.drained() && !control_open_) return true;
  return Clock::now() >= *keeper_gone_at_ + kLastWords && !agent_.output_paused();
}

// After the keeper there should be nobody. If the keeper was killed, its agent is our child now and
// ends the job; if both were, so are all that the ranks left, and we end them.
void Supervisor::sweep() {
  if (reap_all(nullptr)) return;
  const int left = end_descendants(kSweepLimit, nullptr);
  if (left > 0) say(std::to_string(left) + " processes cannot be ended");
}

// The last output goes out, for as long as its reader takes; only an impatient user cuts that
// short.
void Supervisor::write_out() {
  for (output_.flush(); !output_.idle();
       output_.flush()) {  // a turn may add words, about a failed sink for one
    loop_.turn(Clock::now() + AgentWatch::kTick);
    if (interrupts_ > 1) return;
  }
}

std::optional<TimePoint> Supervisor::next_deadline() const {
  TimePoint soonest = watch_.deadline();
  const auto consider = [&](const std::optional<TimePoint>& at) {
    if (at) soonest = std::min(soonest, *at);
  };
  for (const auto& at : {time_limit_, states_deadline_, suspend_deadline_, say_why_at_})
    consider(at);
  consider(output_.next_deadline());
  consider(membership_.next_deadline());
  if (keeper_gone_at_ && !agent_.output_paused()) consider(*keeper_gone_at_ + kLastWords);
  return soonest;
}

ExitStatus Supervisor::run() {
  while (!over()) {
    loop_.turn(next_deadline());
    const TimePoint now = Clock::now();
    on_deadlines(now);
    output_.tick(now, agent_.output_paused() || agent_.unread_bytes() > 0);
    output_.flush();
  }
  return finish();
}

ExitStatus Supervisor::finish() {
  fault_point("hvdrun_finish");
  sweep();
  output_.finish();
  if (!agent_ended_) {
    record_.note_agent_lost(agent_name() + " was lost; its ranks were ended");
    if (!output_.noise().empty()) say("before the agent spoke: " + output_.noise());
  }
  write_out();
  on_sink();
  if (output_.lost()) record_.note_output_lost();
  JobResult result = record_.result(Clock::now());
  if (result.verdict.first) result.stderr_tail = output_.stderr_tail(result.verdict.first->rank);
  result.lost_output_bytes = output_.lost_bytes();
  result.split_lines = output_.split_lines();
  ExitStatus status = result.verdict.status;
  std::string trouble;
  if (!spec_.result_file.empty())
    trouble = write_result_file(spec_.result_file, result_json(result));
  if (!trouble.empty()) say(trouble);
  if (!trouble.empty() && status.code == 0) status.code = kExitOwnFailure;
  output_.say(report(result.verdict, result.facts, result.stderr_tail), Clock::now());
  write_out();
  return status;
}

}  // namespace

ExitStatus supervise(const JobSpec& spec, const std::vector<Slot>& slots, const StartState& start,
                     Carrier& carrier) {
  signal(SIGPIPE, SIG_IGN);
  sigset_t ttin;
  sigemptyset(&ttin);
  sigaddset(&ttin, SIGTTIN);
  pthread_sigmask(SIG_BLOCK, &ttin, nullptr);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  return (new Supervisor(spec, slots, start, carrier))
      ->run();  // never destroyed: the process leaves by _exit
}

}  // namespace hvd
