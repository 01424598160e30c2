#include "cli/supervisor.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "cli/agent/descendants.h"
#include "cli/messages.h"
#include "cli/quoted.h"
#include "cli/supervisor_impl.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

// An agent speaks once a second: one that was silent for so long when the user lost patience is not
// waited for.
constexpr std::chrono::milliseconds kImpatientSilence{2000};

}  // namespace

HostAgent* Supervisor::agent_of(int host) {
  const auto found = std::find_if(agents_.begin(), agents_.end(),
                                  [&](const auto& one) { return one->number() == host; });
  return found == agents_.end() ? nullptr : found->get();
}

bool Supervisor::is_on(int rank, const HostAgent& agent) const {
  return rank >= 0 && size_t(rank) < slots_.size() && slots_[size_t(rank)].host == agent.number();
}

bool Supervisor::reads_stdin(const HostAgent& agent) const {
  return spec_.stdin_mode == StdinMode::kAll ||
         (spec_.stdin_mode == StdinMode::kRank0 && is_on(0, agent));
}

void Supervisor::give_stdin(FrameKind kind, std::string_view bytes) {
  for (const auto& agent : agents_) {
    if (!reads_stdin(*agent)) continue;
    agent->pipes().send_frame(kind, bytes);
    agent->stdin_given += bytes.size();
  }
}

void Supervisor::begin_stdin() {
  if (spec_.stdin_mode == StdinMode::kNone) return;
  if (stdin_is_empty()) return give_stdin(FrameKind::kStdinEof, {});
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
  if (gpu_look_) gpu_look_->note_start();
  output_.begin();
  HostAgent& agent = *agent_of(start.host);
  agent.note_start();
  if (places_.empty()) {  // all hosts are there by now
    std::map<int, HostIdentity> identities;
    for (const auto& one : agents_) identities[one->number()] = one->identity;
    places_ = places_of(slots_, identities);
  }
  const HostPlace& place = places_.at(start.host);
  proto::StartWorkers message =
      start_message(spec_, start_, start.worlds, place.group_rank, int(places_.size()));
  message.set_machine_ranks(place.machine_ranks);
  message.set_master_address(master_address());
  if (agent.remote()) make_remote(spec_, start_, message);
  if (authority_ && agents_.size() > 1) set_interface(agent.place, message);
  message.set_master_port(agent_of(slots_.front().host)->master_port);
  if (!agent.bootstrapped()) {  // no round trip: workers start while the control stream is set up
    *agent.bootstrap().mutable_start() = std::move(message);
    return;
  }
  proto::ToAgent order;
  *order.mutable_start() = std::move(message);
  agent.order(server_, order);
}

void Supervisor::perform(const action::StartEpoch& start) {
  record_.note_epoch_started();
  relay_.start(start);
}

void Supervisor::perform(const action::RefuseEpoch& refuse) {
  record_.note_init_refused(refuse.reason, refuse.missing);
  agent_of(refuse.host)->order(server_, to_message(refuse));
}

void Supervisor::perform(const action::EndJob& end) {
  if (suspend_deadline_) resume();  // an end is not put off
  const bool first = record_.note_cause(end.cause, end.reason);
  if (first) note_who_is_late(end.cause);
  const bool has_words = end.cause == EndCause::kRankFailed || end.cause == EndCause::kNotStarted;
  if (first && has_words) say_why_at_ = Clock::now() + kReportSoon;
  order_all(to_message(end));
  limit_end(end);
  limit_readers(end);
  if (remote_hosts_) remote_hosts_->stop();
}

// An agent that does not answer may hold up a job for long, but not its end.
void Supervisor::limit_end(const action::EndJob& end) {
  const TimePoint now = Clock::now();
  for (const auto& agent : agents_) {
    agent->dismiss();
    if (end.cause == EndCause::kStartTimeout)  // it may be the agent that is stuck
      agent->watch().hurry(now, agent->attached() ? AgentWatch::kSilence : AgentWatch::Duration{});
    else if (end.first_signal == SIGKILL)
      agent->watch().hurry(now, kImpatientSilence);
    else
      agent->watch().hurry(now + end.after + spec_.stop_grace + AgentWatch::kPatience,
                           AgentWatch::kSilence);
  }
}

// Ends that somebody or a limit has asked for wait for readers only so long; whoever reads on after
// an interrupt, however slowly, is left the time.
void Supervisor::limit_readers(const action::EndJob& end) {
  std::optional<std::chrono::milliseconds> patience;
  if (end.cause == EndCause::kTimeLimit || end.cause == EndCause::kTerminated ||
      end.cause == EndCause::kHangup || end.cause == EndCause::kQuit ||
      end.cause == EndCause::kReaderGone)
    patience = kind_patience();
  const bool interrupted = end.cause == EndCause::kInterrupted;
  if (interrupted) patience = end.first_signal == SIGKILL ? kImpatience : kind_patience();
  const bool slow_too = !interrupted || end.first_signal == SIGKILL;
  if (patience) output_.limit_readers(*patience, slow_too, Clock::now());
}

void Supervisor::order_all(const proto::ToAgent& order) {
  for (const auto& agent : agents_) agent->order(server_, order);
}

// Of all that can still answer; false when nobody can.
bool Supervisor::ask_all(const proto::ToAgent& order) {
  for (const auto& agent : agents_) {
    agent->asked = agent->control_open() && !agent->ended() && !agent->keeper_gone();
    if (agent->asked) agent->order(server_, order);
  }
  return !all_answered();
}

bool Supervisor::all_answered() const {
  return std::none_of(agents_.begin(), agents_.end(), [](const auto& one) { return one->asked; });
}

void Supervisor::reap() {
  const auto first = [this](pid_t pid) {
    if (remote_hosts_) remote_hosts_->kill_ssh(pid);
    if (cleaning_) cleaning_->kill_ssh(pid);
    if (gpu_look_) gpu_look_->kill_ssh(pid);
    return false;
  };
  reap_until(first, [this](pid_t pid, int status) {
    if (remote_hosts_ && remote_hosts_->child_ended(pid, status)) return;
    if (cleaning_ && cleaning_->child_ended(pid, status)) return;
    if (gpu_look_ && gpu_look_->child_ended(pid, status)) return;
    for (const auto& agent : agents_)
      if (pid == agent->pipes().pid() && !agent->keeper_gone()) on_keeper_gone(*agent, status);
  });
}

void Supervisor::on_signals() {
  for (int signal : signals_.take()) {
    switch (signal) {
      case SIGCHLD:
        reap();
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
        order_all(message);
        break;
      }
      case SIGCONT:
        if (suspend_deadline_) resume();
        if (stdin_) stdin_->continued();
        break;
    }
  }
}

// The signal stays pending until the ranks stand still, so that a SIGCONT that comes before takes
// it back, as it does for any process.
void Supervisor::on_stop_asked() {
  if (membership_.ending()) {
    stop_asked_.take();
    return;
  }
  loop_.unwatch(stop_asked_.fd());
  proto::ToAgent message;
  message.mutable_suspend();
  ask_all(message);
  clock_.stand(JobClock::kSuspended, Clock::now());
  suspend_deadline_ = Clock::now() + kAnswerLimit;
}

void Supervisor::on_control() {
  for (const RendezvousServer::Incoming& news : server_.take()) {
    HostAgent* agent = nullptr;
    for (const auto& one : agents_)
      if (one->is(news.session)) agent = one.get();
    // The first message says whose stream it is.
    if (agent == nullptr && !news.messages.empty() && news.messages.front().has_attached()) {
      const proto::Attached& attached = news.messages.front().attached();
      agent = agent_of(attached.host());
      if (agent != nullptr &&
          (agent->attached() || news.host.value_or(attached.host()) != attached.host()))
        agent = nullptr;
      if (agent != nullptr) on_attached(*agent, news.session, attached);
    }
    if (agent == nullptr) continue;
    if (!news.messages.empty()) agent->heard(Clock::now());
    for (const proto::FromAgent& message : news.messages) on_message(*agent, message);
    if (news.closed) {
      agent->close_control();
      agent->asked = false;
      if (!news.why.empty())
        lose_contact(*agent, agent->name() + " was given up: " + news.why);
      else if (!agent->ended())
        on_stream_lost(*agent);
    }
  }
  prove_network(Clock::now());
}

// An agent here has died; its keeper, which may be stopped, has as long as after a last word.
//
// Elsewhere the stream alone may be lost. Nobody takes it up again: the agent ends what it runs,
// which the host itself then says through ssh, within two seconds where ssh is there. Until then it
// is silent, and what is silent is suspect after 3 s and dead after 6 s, as any host.
void Supervisor::on_stream_lost(HostAgent& agent) {
  relay_.lose(agent.number(), agent.name() + " was lost");
  if (!agent.remote()) agent.watch().expect_end(Clock::now());
}

void Supervisor::on_attached(HostAgent& agent, int session, const proto::Attached& attached) {
  agent.attach(server_, session, pid_t(attached.agent_pid()));
  agent.master_port = attached.master_port();
  close_door();
  tell(event::AgentJoined{agent.number()});
}

void Supervisor::on_message(HostAgent& agent, const proto::FromAgent& message) {
  agent.clock().note(message.clock_ns(), Clock::now());
  log_.note(agent.number(), message);
  switch (message.what_case()) {
    case proto::FromAgent::kStarted:
      say_threads(agent, message.started().threads_each());
      say_limits(agent, message.started());
      tell(record_.note(message.started()));
      break;
    case proto::FromAgent::kSpawnFailed:
      tell(record_.note(message.spawn_failed(), agent.clock().ours(message.clock_ns())));
      break;
    case proto::FromAgent::kEnds:
      for (const proto::RankEnd& end : message.ends().ends()) relay_.note_end(end.rank());
      tell(record_.note(message.ends(), agent.clock()));
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
      agent.stdin_gone = agent.stdin_gone || message.stdin_taken().gone();
      on_stdin_taken(agent, size_t(message.stdin_taken().bytes()));
      break;
    case proto::FromAgent::kSuspended:
      on_suspended(agent);
      break;
    case proto::FromAgent::kStates:
      on_states(agent, message.states());
      break;
    case proto::FromAgent::kHeld:
      on_held(agent, message.held());
      break;
    case proto::FromAgent::kSaid:
      try_say((agent.remote() || agents_.size() > 1 ? agent.host().name + ": " : "") +
              printable(message.said().text()));
      break;
    case proto::FromAgent::kEnded:
      on_ended(agent, message.ended());
      break;
    case proto::FromAgent::kBeat:
      break;
    case proto::FromAgent::kStopping:
      agent.stopping = true;
      break;
    case proto::FromAgent::kDied:
      relay_.note(agent.number(), message.died());
      break;
    case proto::FromAgent::kBroken:
      if (relay_.note(agent.number(), message.broken())) record_.note(message.broken());
      break;
    case proto::FromAgent::kStoreQuestion:
      relay_.note(agent.number(), message.store_question(), clock_.time(Clock::now()));
      break;
    case proto::FromAgent::kListening:
      on_listening(agent, message.listening());
      break;
    case proto::FromAgent::kReached:
      on_reached(agent, message.reached());
      break;
    case proto::FromAgent::kAttached:
    case proto::FromAgent::WHAT_NOT_SET:
      break;
  }
}

void Supervisor::on_ended(HostAgent& agent, const proto::Ended& ended) {
  if (agent.ended()) return;
  fault_point("hvdrun_agent_ended");
  agent.note_end(ended.output_bytes());
  other_pairs_.leave(agent.number());
  const bool by_itself =
      ended.why() == proto::Ended::KEEPER_LOST || ended.why() == proto::Ended::LEASE_LOST;
  if (by_itself) {
    // To one on another host whose ssh is gone, hvdrun is.
    const bool cut = agent.remote() && ended.why() == proto::Ended::LEASE_LOST;
    const std::string why = cut ? "the connection to " + agent.host().name +
                                      " is lost; its agent has ended what ran there"
                                : agent.name() + " ended the job: " + printable(ended.reason());
    record_.note_cause(EndCause::kOwnFailure, why);
    tell(event::AgentLost{agent.number(), why});
  }
  record_.note_stuck(agent.host().name, ended);
  if (const std::string words = leftovers_note(ended); !words.empty()) say(words);
}

// A debugger's stop is the user's own: nothing may time out meanwhile.
void Supervisor::on_held(HostAgent& agent, const proto::Held& held) {
  for (int i = 0; i < held.ranks_size() && i < held.pids_size(); ++i)
    if (held_said_.insert(held.ranks(i)).second)
      say("rank " + std::to_string(held.ranks(i)) + " (process " + std::to_string(held.pids(i)) +
          ") is held by a debugger; no time-out of the job runs until it is let go");
  agent.held = held.ranks_size() > 0 && !agent.keeper_gone();
  note_held();
}

void Supervisor::note_held() {
  if (std::any_of(agents_.begin(), agents_.end(), [](const auto& one) { return one->held; }))
    clock_.stand(JobClock::kDebugger, Clock::now());
  else
    clock_.go_on(JobClock::kDebugger, Clock::now());
  for (const auto& agent : agents_) {
    const bool any = std::any_of(agents_.begin(), agents_.end(),
                                 [&](const auto& one) { return one != agent && one->held; });
    if (any == std::exchange(agent->told_held, any)) continue;
    proto::ToAgent order;
    order.mutable_held_elsewhere()->set_any(any);
    agent->order(server_, order);
  }
}

void Supervisor::on_output(HostAgent& agent, std::string_view bytes) {
  FrameReader::Piece piece;
  try {
    while (agent.frames().next(bytes, piece)) {
      if (!agent.runs_ranks())  // there may be no place for it yet
        throw Error(ErrorCode::kInternal, "a frame from before any rank was started");
      const bool its_own = is_on(piece.header.rank, agent);
      if (piece.header.kind == FrameKind::kOwnWordsOver && its_own)
        output_.close_stderr_tail(piece.header.rank);
      if (piece.header.kind != FrameKind::kOutput) continue;
      const TimePoint now = Clock::now();
      agent.note_output(piece.bytes.size(), now);
      if (its_own) output_.feed(piece, agent.number(), now);
    }
  } catch (const Error& error) {
    lose_contact(agent, agent.name() + " sent what cannot be read: " + error.what());
  }
  output_.flush();
  pause_while_full();
}

// What is not read from agents waits with them.
void Supervisor::pause_while_full() {
  if (output_.full())
    for (const auto& one : agents_) one->pipes().pause_output();
}

void Supervisor::on_words(int number, std::string_view line) {
  const std::string shown = printable(line);
  const std::string words = spec_.hosts.at(size_t(number)).name + ": " + shown;
  HostAgent* agent = agent_of(number);
  if (agent == nullptr) return try_say(words);  // one that has no rank after all is never paused
  agent->note_words(shown);
  say(words);
  pause_while_full();
}

void Supervisor::try_say(const std::string& words) {
  if (!output_.try_say("hvdrun: " + words + "\n", Clock::now())) ++unsaid_;
}

void Supervisor::say_unsaid() {
  if (unsaid_ > 0 &&
      output_.try_say("hvdrun: " + std::to_string(unsaid_) +
                          " lines of agents or of the log were dropped: they came faster than "
                          "standard error was read\n",
                      Clock::now()))
    unsaid_ = 0;
}

// Nobody tells any more what becomes of its ranks: to the others they are dead.
void Supervisor::lose(HostAgent& agent, const std::string& why) {
  relay_.lose(agent.number(), agent.name() + " was lost");
  tell(event::AgentLost{agent.number(), why});
}

// What an agent says makes no sense: its right to run ends, and the job with it.
void Supervisor::lose_contact(HostAgent& agent, const std::string& why) {
  if (!agent.pipes().leased()) return;
  lose(agent, why);
  agent.close_lease();
}

void Supervisor::on_sink() {
  for (const auto& sink : output_.sinks()) sink->clear_wake();
  const bool cut_short = interrupts_ > 0 && record_.all_ended();  // the status is the ranks'
  if (output_.reader_gone() && !membership_.ending() && !cut_short)
    tell(event::EndAsked{EndCause::kReaderGone, SIGTERM, "the reader of the output is gone"});
  const std::string error = output_.other_error();
  if (!error.empty() && !output_lost_said_) {
    output_lost_said_ = true;
    say(error + "; what comes is dropped and the exit status will not be 0");
  }
  say_unsaid();
  if (any_paused() && !output_.full())
    for (const auto& agent : agents_) agent->pipes().resume_output();
}

bool Supervisor::any_paused() const {
  return std::any_of(agents_.begin(), agents_.end(),
                     [](const auto& one) { return one->pipes().output_paused(); });
}

// As much as everybody has taken who reads it, and lives: nothing more once nobody does.
void Supervisor::on_stdin_taken(HostAgent& agent, size_t bytes) {
  if (bytes > agent.stdin_given - agent.stdin_taken)
    return lose_contact(agent, agent.name() + " says that it took more input than there was");
  agent.stdin_taken += bytes;
  give_credit();
}

void Supervisor::give_credit() {
  if (!stdin_) return;
  std::optional<size_t> taken;
  for (const auto& agent : agents_)
    if (reads_stdin(*agent) && !agent->keeper_gone() && !agent->stdin_gone)
      taken = std::min(taken.value_or(agent->stdin_taken), agent->stdin_taken);
  if (!taken || *taken <= stdin_credited_) return;
  stdin_->give_credit(*taken - std::exchange(stdin_credited_, *taken));
}

void Supervisor::on_stdin() {
  const StdinReader::Taken taken = stdin_->take();
  if (!taken.bytes.empty()) give_stdin(FrameKind::kStdinData, taken.bytes);
  if (!taken.end) return;
  if (taken.error != 0) {
    const std::string reason = std::strerror(taken.error);
    say("cannot read standard input: " + reason + "; " +
        (spec_.stdin_mode == StdinMode::kAll ? "all ranks see" : "rank 0 sees") +
        " its end and the exit status will not be 0");
    record_.note_input_lost(reason);
  }
  give_stdin(FrameKind::kStdinEof, {});
  loop_.unwatch(stdin_->wake_fd());
}

}  // namespace hvd
