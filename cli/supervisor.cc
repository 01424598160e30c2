#include "cli/supervisor.h"

#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "cli/agent/descendants.h"
#include "cli/agent_link.h"
#include "cli/failure_report.h"
#include "cli/loop.h"
#include "cli/messages.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "cli/stdin_reader.h"
#include "rendezvous/membership.h"
#include "rendezvous/server.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kTick{1000};
constexpr int kAgentSilentTicks = 3;  // then it is said
constexpr milliseconds kKeeperPatience{
    3000};  // from the agent's last word, or the end of its lease
constexpr milliseconds kLastWords{
    1000};  // after the keeper's death, for what is still in the channels
constexpr milliseconds kSweepLimit{10'000};
constexpr milliseconds kAnswerLimit{1000};  // to a question that holds something up
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
  void on_ends(const proto::RankEnds& ends);
  void on_spawn_failed(const proto::SpawnFailed& failure);
  void on_ended(const proto::Ended& ended);
  void on_states(const proto::RankStates& states);
  void on_output(std::string_view bytes);
  void on_sink();
  void on_stdin();
  void on_tick(TimePoint now);
  void on_keeper_gone(int status);
  void on_deadlines(TimePoint now);

  // what follows from them
  void tell(const Event& event) { perform(membership_.apply(event, Clock::now())); }
  void perform(const std::vector<Action>& actions);
  void perform(const action::StartWorkers& start);
  void perform(const action::StartEpoch& start);
  void perform(const action::RefuseEpoch& refuse);
  void perform(const action::EndJob& end);
  void order(const proto::ToAgent& order);
  void begin_stdin();
  void begin_time_limit_end();
  void suspend();
  void lose_agent(const std::string& reason);
  void close_lease();

  // the end
  bool over() const;
  void sweep();
  void write_out();
  ExitStatus finish();
  RankEnd& end_of(int rank);
  void say(const std::string& words) { output_.say("hvdrun: " + words + "\n", Clock::now()); }
  std::optional<TimePoint> next_deadline() const;

  const JobSpec& spec_;
  const StartState& start_;
  const std::vector<Slot>& slots_;
  Loop loop_;
  SignalReader signals_;
  Output output_;
  AgentLink agent_;
  RendezvousServer server_;
  Membership membership_;
  std::optional<StdinReader> stdin_;
  proto::Bootstrap bootstrap_;
  bool bootstrap_sent_ = false;
  std::optional<int> session_;  // the agent's, once it has attached
  std::vector<proto::ToAgent> early_orders_;
  bool control_open_ = true;
  JobFacts facts_;
  bool agent_ended_ = false;  // it said so itself
  int interrupts_ = 0;
  bool output_lost_said_ = false;
  int silent_ticks_ = 0;
  TimePoint next_tick_ = Clock::now() + kTick;
  std::optional<TimePoint> time_limit_, states_deadline_, suspend_deadline_;
  std::optional<TimePoint> keeper_deadline_, keeper_gone_at_;
};

OutputOptions output_options(const JobSpec& spec) {
  OutputOptions options;
  options.ranks = spec.size;
  options.tags = spec.tags;
  options.timestamps = spec.timestamps;
  options.color = spec.color;
  options.shown = spec.output_ranks;
  options.directory = spec.output_directory;
  return options;
}

Supervisor::Supervisor(const JobSpec& spec, const std::vector<Slot>& slots, const StartState& start,
                       Carrier& carrier)
    : spec_(spec),
      start_(start),
      slots_(slots),
      signals_({SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT}, start.ignored_signals),
      output_(output_options(spec)),
      agent_(loop_, carrier.start_agent(spec.hosts.front()),
             {[this](std::string_view bytes) { on_output(bytes); },
              [this](std::string_view words) {
                output_.say("hvdrun: " + spec_.hosts.front().name + ": " + std::string(words),
                            Clock::now());
              }}),
      server_(agent_.take_control()),
      membership_(spec.hosts, slots, {.size_min = 0, .start_timeout = spec.start_timeout},
                  Clock::now()) {
  fault_point("hvdrun_agent_started");
  facts_.size = spec.size;
  loop_.watch(signals_.fd(), EPOLLIN, [this](uint32_t) { on_signals(); });
  loop_.watch(server_.wake_fd(), EPOLLIN, [this](uint32_t) { on_control(); });
  for (const auto& sink : output_.sinks())
    loop_.watch(sink->wake_fd(), EPOLLIN, [this](uint32_t) { on_sink(); });
  bootstrap_.set_host(0);
  bootstrap_.set_job(std::to_string(getpid()) + "-" + std::to_string(std::time(nullptr)));
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
  struct stat in{};
  if (fstat(0, &in) == 0 && S_ISCHR(in.st_mode) && in.st_rdev == makedev(1, 3))
    return agent_.send_frame(FrameKind::kStdinEof,
                             {});  // /dev/null needs no thread to find that out
  stdin_.emplace();
  loop_.watch(stdin_->wake_fd(), EPOLLIN, [this](uint32_t) { on_stdin(); });
}

void Supervisor::perform(const std::vector<Action>& actions) {
  for (const Action& action : actions)
    std::visit([this](const auto& one) { perform(one); }, action);
}

void Supervisor::perform(const action::StartWorkers& start) {
  proto::StartWorkers message;
  for (const World& world : start.worlds) to_proto(world, *message.add_worlds());
  for (const std::string& word : spec_.command) message.add_argv(word);
  for (const std::string& entry : start_.environment) message.add_environment(entry);
  for (const EnvironmentSetting& one : spec_.environment) {
    message.add_chosen(one.name);
    if (one.value) message.add_environment(one.name + "=" + *one.value);
  }
  char here[PATH_MAX];
  message.set_directory(!spec_.directory.empty()    ? spec_.directory
                        : getcwd(here, sizeof here) ? here
                                                    : "/");
  const mode_t mask = umask(0);
  umask(mask);
  message.set_file_mask(mask);
  for (const RlimitValue& limit : start_.limits) {
    proto::ResourceLimit& one = *message.add_limits();
    one.set_resource(limit.resource);
    one.set_soft(limit.value.rlim_cur);
    one.set_hard(limit.value.rlim_max);
  }
  message.set_ignored_signals(start_.ignored_signals);
  message.set_stdin(spec_.stdin_mode == StdinMode::kAll    ? proto::ALL
                    : spec_.stdin_mode == StdinMode::kNone ? proto::NONE
                                                           : proto::RANK_0);
  if (!bootstrap_sent_) {  // no round trip: workers start while the control stream is set up
    *bootstrap_.mutable_start() = std::move(message);
    return;
  }
  proto::ToAgent to_agent;
  *to_agent.mutable_start() = std::move(message);
  order(to_agent);
}

void Supervisor::perform(const action::StartEpoch& start) {
  proto::ToAgent message;
  message.mutable_start_epoch()->set_epoch(start.epoch);
  for (const action::Member& member : start.members) {
    message.mutable_start_epoch()->add_ranks(member.rank);
    to_proto(member.world, *message.mutable_start_epoch()->add_worlds());
  }
  order(message);
}

void Supervisor::perform(const action::RefuseEpoch& refuse) {
  if (facts_.init_refused.empty()) facts_.init_refused = refuse.reason;
  proto::ToAgent message;
  message.mutable_refuse_epoch()->set_reason(refuse.reason);
  order(message);
}

void Supervisor::perform(const action::EndJob& end) {
  if (facts_.cause == EndCause::kNone) {
    facts_.cause = end.cause;
    facts_.cause_text = end.reason;
    if (end.cause == EndCause::kRankFailed && spec_.size > 1)
      say(end.reason + "; ending the others");
  }
  proto::ToAgent message;
  message.mutable_stop()->set_first_signal(end.first_signal);
  message.mutable_stop()->set_after_ms(int(end.after.count()));
  order(message);
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
        silent_ticks_ = 0;
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
    if (!news.messages.empty()) silent_ticks_ = 0;
    for (const proto::FromAgent& message : news.messages) on_message(message);
    if (news.closed) control_open_ = false;
  }
}

void Supervisor::on_message(const proto::FromAgent& message) {
  switch (message.what_case()) {
    case proto::FromAgent::kAttached:
      tell(event::AgentJoined{message.attached().host()});
      break;
    case proto::FromAgent::kStarted: {
      const proto::Started& started = message.started();
      tell(event::WorkersStarted{{started.ranks().begin(), started.ranks().end()}});
      break;
    }
    case proto::FromAgent::kSpawnFailed:
      on_spawn_failed(message.spawn_failed());
      break;
    case proto::FromAgent::kEnds:
      on_ends(message.ends());
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

RankEnd& Supervisor::end_of(int rank) {
  RankEnd& end = facts_.ends.emplace_back();
  end.rank = rank;
  if (rank >= 0 && rank < spec_.size) end.host = slots_[size_t(rank)].world.host;
  return end;
}

void Supervisor::on_ends(const proto::RankEnds& ends) {
  const size_t before = facts_.ends.size();
  for (const proto::RankEnd& one : ends.ends()) {
    if (one.rank() < 0 || one.rank() >= spec_.size) continue;
    RankEnd& end = end_of(one.rank());
    end.pid = one.pid();
    end.killed = one.killed();
    end.status = one.status();
    end.run_ns = one.run_ns();
    end.at_ns = one.at_ns();
    end.order = one.order();
    end.batch = one.batch();
    end.sent_signal = one.sent_signal();
    end.claimed = one.last().claimed();
    end.stranded_others = one.last().stranded_others();
    end.given_up = one.last().given_up();
    end.doing = one.last().doing();
    end.resident_bytes_max = one.resident_bytes_max();
  }
  // The likeliest of those that ended together is told first: it is the one that the user reads
  // about.
  const JobFacts together{
      spec_.size, {facts_.ends.begin() + long(before), facts_.ends.end()}, EndCause::kNone, {}, {},
      false};
  const Verdict verdict = attribute(together);
  const auto told = [this](const RankEnd& end) {
    tell(event::RankEnded{end.rank, end.killed || end.status != 0, describe(end)});
  };
  if (verdict.first) told(*verdict.first);
  for (const RankEnd& end : verdict.fallout) told(end);
  for (const RankEnd& end : verdict.finished) told(end);
}

void Supervisor::on_spawn_failed(const proto::SpawnFailed& failure) {
  if (failure.rank() < 0 || failure.rank() >= spec_.size) return;
  RankEnd& end = end_of(failure.rank());
  end.spawn_error = failure.error();
  end.spawn_step = failure.step() + " of " + spec_.command.front();
  tell(event::RankEnded{failure.rank(), true, describe(end)});
}

void Supervisor::on_ended(const proto::Ended& ended) {
  fault_point("hvdrun_agent_ended");
  agent_ended_ = true;
  keeper_deadline_ = Clock::now() + kKeeperPatience;
  const bool by_itself =
      ended.why() == proto::Ended::KEEPER_LOST || ended.why() == proto::Ended::LEASE_LOST ||
      ended.why() == proto::Ended::SIGNALLED || ended.why() == proto::Ended::FAILED;
  if (by_itself && facts_.cause == EndCause::kNone) {
    facts_.cause = EndCause::kOwnFailure;
    facts_.cause_text =
        "the agent on " + spec_.hosts.front().name + " ended the job: " + ended.reason();
  }
  const auto processes = [](int count) {
    return std::to_string(count) + (count == 1 ? " process" : " processes");
  };
  if (ended.leftovers() > 0)
    say("ended " + processes(ended.leftovers()) + " that the ranks had left running");
  if (ended.unkillable() > 0) say(processes(ended.unkillable()) + " cannot be ended");
}

void Supervisor::on_states(const proto::RankStates& states) {
  if (!states_deadline_) return;
  for (const proto::RankStatus& one : states.ranks())
    say("rank " + std::to_string(one.rank()) + " " + one.doing());
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
  silent_ticks_ = 0;
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

// Silence is counted in ticks that this process was awake for: a debugger that holds hvdrun must
// not cost the job its agent.
void Supervisor::on_tick(TimePoint now) {
  next_tick_ = now + kTick;
  if (keeper_gone_at_ || agent_ended_ || !agent_.leased()) return;
  ++silent_ticks_;
  const std::string who = "the agent on " + spec_.hosts.front().name;
  if (silent_ticks_ == kAgentSilentTicks)
    say(who + " has not answered for " + std::to_string(kAgentSilentTicks) + " s");
  if (silent_ticks_ >= std::max<int64_t>(1, spec_.agent_timeout / kTick))
    lose_agent(who + " did not answer for " + std::to_string(silent_ticks_) +
               " s (--agent-timeout)");
}

void Supervisor::lose_agent(const std::string& reason) {
  tell(event::AgentLost{0, reason});
  close_lease();
}

void Supervisor::close_lease() {
  agent_.close_lease();
  if (!keeper_deadline_) keeper_deadline_ = Clock::now() + kKeeperPatience;
}

void Supervisor::on_keeper_gone(int status) {
  keeper_gone_at_ = Clock::now();
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
  if (due(keeper_deadline_) && !keeper_gone_at_) {
    say(agent_ended_ ? "the keeper does not end; killing it"
                     : "the agent and its keeper do not answer; killing them");
    kill(agent_.pid(),
         SIGKILL);  // not reaped yet, so the pid is its own; what it leaves comes to us
  }
  if (now >= next_tick_) on_tick(now);
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
    loop_.turn(Clock::now() + kTick);
    if (interrupts_ > 1) return;
  }
}

std::optional<TimePoint> Supervisor::next_deadline() const {
  TimePoint soonest = next_tick_;
  const auto consider = [&](const std::optional<TimePoint>& at) {
    if (at) soonest = std::min(soonest, *at);
  };
  for (const auto& at : {time_limit_, states_deadline_, suspend_deadline_, keeper_deadline_})
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
  if (!agent_ended_ && (facts_.cause == EndCause::kNone || facts_.cause == EndCause::kRankFailed)) {
    facts_.cause = EndCause::kAgentLost;
    facts_.cause_text =
        "the agent on " + spec_.hosts.front().name + " was lost; its ranks were ended";
    if (!output_.noise().empty()) say("before the agent spoke: " + output_.noise());
  }
  write_out();
  on_sink();
  facts_.output_lost = output_.lost();
  const Verdict verdict = attribute(facts_);
  std::vector<std::string> tail;
  if (verdict.first) tail = output_.stderr_tail(verdict.first->rank);
  output_.say(report(verdict, facts_, tail), Clock::now());
  write_out();
  return verdict.status;
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
