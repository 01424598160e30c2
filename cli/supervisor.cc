#include "cli/supervisor.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "cli/agent/descendants.h"
#include "cli/messages.h"
#include "cli/supervisor_impl.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

constexpr std::chrono::milliseconds kReportSoon{500};  // is why it ends said now, or by the report?
constexpr int kInterruptsMax = 3;
// An agent speaks once a second: one that was silent for so long when the user lost patience is not
// waited for.
constexpr std::chrono::milliseconds kImpatientSilence{2000};

}  // namespace

Supervisor::Supervisor(const JobSpec& spec, const std::vector<Slot>& slots, const StartState& start,
                       Carrier& carrier)
    : spec_(spec),
      start_(start),
      signals_({SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT},
               start.ignored_signals & ~(1ull << (SIGCHLD - 1))),
      output_(OutputOptions::of(spec)),
      log_(spec, [this](std::string_view line) { output_.say(line, Clock::now()); }),
      host_(slots.front().host),
      agent_(loop_, carrier.start_agent(host()),
             {[this](std::string_view bytes) { on_output(bytes); },
              [this](std::string_view words) {
                output_.say("hvdrun: " + host().name + ": " + std::string(words), Clock::now());
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
  log_.began(record_.job(), spec);
  bootstrap_.set_host(host_);
  bootstrap_.set_job(record_.job());
  bootstrap_.set_stop_grace_ms(int(spec.stop_grace.count()));
  perform(membership_.begin(Clock::now()));
  output_.begin();
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
  for (const Action& action : actions) {
    log_.note(action);
    std::visit([this](const auto& one) { perform(one); }, action);
  }
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

void Supervisor::perform(const action::StartEpoch& start) {
  record_.note_epoch_started();
  order(to_message(start));
}

void Supervisor::perform(const action::RefuseEpoch& refuse) {
  record_.note_init_refused(refuse.reason, refuse.missing);
  order(to_message(refuse));
}

void Supervisor::perform(const action::EndJob& end) {
  const bool first = record_.note_cause(end.cause, end.reason);
  if (first && end.cause == EndCause::kRankFailed) say_why_at_ = Clock::now() + kReportSoon;
  order(to_message(end));
  limit_end(end);
  limit_readers(end);
}

// An agent that does not answer may hold up a job for long, but not its end.
void Supervisor::limit_end(const action::EndJob& end) {
  const TimePoint now = Clock::now();
  if (end.cause == EndCause::kStartTimeout)  // it may be the agent that is stuck
    watch_.hurry(now, session_ ? AgentWatch::kSilence : AgentWatch::Duration{});
  else if (end.first_signal == SIGKILL)
    watch_.hurry(now, kImpatientSilence);
  else
    watch_.hurry(now + end.after + spec_.stop_grace + AgentWatch::kPatience, AgentWatch::kSilence);
}

// Ends that somebody or a limit has asked for wait for readers only so long. An interrupt does not,
// since a second one cuts it short.
void Supervisor::limit_readers(const action::EndJob& end) {
  std::optional<std::chrono::milliseconds> patience;
  if (end.cause == EndCause::kTimeLimit || end.cause == EndCause::kTerminated ||
      end.cause == EndCause::kHangup || end.cause == EndCause::kQuit)
    patience = kind_patience();
  if (end.cause == EndCause::kInterrupted && end.first_signal == SIGKILL) patience = kImpatience;
  if (patience) limit_readers(*patience, false);
}

void Supervisor::limit_readers(std::chrono::milliseconds patience, bool only_still) {
  only_still_readers_ = only_still;
  if (reader_patience_ && *reader_patience_ <= patience) return;
  reader_patience_ = patience;
  give_up_at_ = Clock::now() + patience;
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
          if (pid == agent_.pid() && !keeper_gone_at_) on_keeper_gone(status);
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
      case SIGQUIT:
        tell(event::EndAsked{EndCause::kQuit, SIGTERM, "hvdrun was told to quit"});
        break;
      case SIGUSR1:
      case SIGUSR2: {
        proto::ToAgent message;
        message.mutable_pass()->set_signal(signal);
        order(message);
        break;
      }
      case SIGTSTP: {
        if (membership_.ending()) break;
        proto::ToAgent message;
        message.mutable_suspend();
        order(message);
        clock_.stand(JobClock::kSuspended, Clock::now());
        suspend_deadline_ = Clock::now() + kAnswerLimit;
        break;
      }
      case SIGCONT:
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
    if (!news.messages.empty()) watch_.heard(Clock::now());
    for (const proto::FromAgent& message : news.messages) on_message(message);
    if (news.closed) control_open_ = false;
  }
}

void Supervisor::on_message(const proto::FromAgent& message) {
  log_.note(message);
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
    case proto::FromAgent::kHeld:
      on_held(message.held());
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
  const bool news = threads_each > 0 && spec_.size > 1 && wants_warnings(spec_);
  if (news && !std::exchange(threads_said_, true)) say(threads_note(threads_each));
}

void Supervisor::on_ended(const proto::Ended& ended) {
  fault_point("hvdrun_agent_ended");
  agent_ended_ = true;
  watch_.expect_end(Clock::now());
  const bool by_itself =
      ended.why() == proto::Ended::KEEPER_LOST || ended.why() == proto::Ended::LEASE_LOST;
  if (by_itself)
    record_.note_cause(EndCause::kOwnFailure, agent_name() + " ended the job: " + ended.reason());
  record_.note_stuck(ended);
  if (const std::string words = leftovers_note(ended); !words.empty()) say(words);
}

// A debugger's stop is the user's own: nothing may time out meanwhile.
void Supervisor::on_held(const proto::Held& held) {
  for (int i = 0; i < held.ranks_size() && i < held.pids_size(); ++i)
    if (held_said_.insert(held.ranks(i)).second)
      say("rank " + std::to_string(held.ranks(i)) + " (process " + std::to_string(held.pids(i)) +
          ") is held by a debugger; no time-out of the job runs until it is let go");
  if (held.ranks_size() > 0)
    clock_.stand(JobClock::kDebugger, Clock::now());
  else
    clock_.go_on(JobClock::kDebugger, Clock::now());
}

void Supervisor::on_output(std::string_view bytes) {
  output_.feed(bytes, Clock::now());
  output_.flush();
  if (output_.full()) agent_.pause_output();
}

void Supervisor::on_sink() {
  for (const auto& sink : output_.sinks()) sink->clear_wake();
  if (output_.reader_gone() && !membership_.ending())
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
  if (taken.error != 0) {
    const std::string reason = std::strerror(taken.error);
    say("cannot read standard input: " + reason + "; " +
        (spec_.stdin_mode == StdinMode::kAll ? "all ranks see" : "rank 0 sees") +
        " its end and the exit status will not be 0");
    record_.note_input_lost(reason);
  }
  agent_.send_frame(FrameKind::kStdinEof, {});
  loop_.unwatch(stdin_->wake_fd());
}

ExitStatus supervise(const JobSpec& spec, const std::vector<Slot>& slots, const StartState& start,
                     Carrier& carrier) {
  signal(SIGCHLD, SIG_DFL);  // ignored, as some daemons start programs, it hides the keeper's end
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // a file that may not grow (ulimit -f) is an error of that file
  sigset_t ttin;
  sigemptyset(&ttin);
  sigaddset(&ttin, SIGTTIN);
  pthread_sigmask(SIG_BLOCK, &ttin, nullptr);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  return (new Supervisor(spec, slots, start, carrier))
      ->run();  // never destroyed: the process leaves by _exit
}

}  // namespace hvd
