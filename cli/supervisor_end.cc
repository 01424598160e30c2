// What is due when, and the end of a job.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "cli/agent/descendants.h"
#include "cli/agent/process_state.h"
#include "cli/failure_report.h"
#include "cli/messages.h"
#include "cli/result_file.h"
#include "cli/result_place.h"
#include "cli/supervisor_impl.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;
// After the keeper's death, for what is still in the channels.
constexpr milliseconds kLastWords{1000};
constexpr milliseconds kSweepLimit{10'000};
constexpr milliseconds kSweepOnce{300};  // who has been tried for long

}  // namespace

// The soonest of what the job's clock counts; nothing while it stands.
std::optional<TimePoint> Supervisor::job_deadline() const {
  std::optional<TimePoint> soonest = membership_.next_deadline();
  if (time_limit_) soonest = soonest ? std::min(*soonest, *time_limit_) : *time_limit_;
  return soonest ? clock_.when(*soonest) : std::nullopt;
}

// The agent is asked first: a debugger may have taken hold of a rank since it last looked, of a
// time limit the user reads what each rank was doing, and if hvdrun itself was stopped all may have
// come in time and wait to be read.
void Supervisor::begin_time_out(TimePoint now) {
  if (!control_open_) return time_out(now);
  proto::ToAgent message;
  message.mutable_describe();
  order(message);
  answer_by_ = now + kAnswerLimit;
}

void Supervisor::on_states(const proto::RankStates& states) {
  if (!answer_by_) return;
  const TimePoint now = Clock::now();
  if (time_limit_ && clock_.time(now) >= *time_limit_ && !clock_.stands() &&
      !membership_.ending() && !record_.all_ended())
    for (const proto::RankStatus& one : states.ranks()) say(describe(one));
  time_out(now);
}

void Supervisor::time_out(TimePoint now) {
  answer_by_.reset();
  if (clock_.stands()) return;
  const TimePoint time = clock_.time(now);
  if (time_limit_ && time >= *time_limit_) {
    time_limit_.reset();
    reach_time_limit();
  }
  const auto of_members = membership_.next_deadline();
  if (of_members && time >= *of_members) tell(event::TimePassed{});
}

// What all ranks have finished counts, also where a hvdrun that had been stopped reads of it when
// the limit is over. Only a reader of their output that stands still is not waited for any longer.
void Supervisor::reach_time_limit() {
  char limit[64];
  std::snprintf(limit, sizeof limit, "time limit of %g s reached (--timeout)",
                double(spec_.timeout.count()) / 1e3);
  if (!record_.all_ended()) return tell(event::EndAsked{EndCause::kTimeLimit, SIGTERM, limit});
  if (!output_.idle())
    say(std::string(limit) +
        "; all ranks have ended, and a reader that stands still is not waited for");
  if (!reader_patience_) limit_readers(kind_patience(), true);
}

void Supervisor::suspend() {
  suspend_deadline_.reset();
  output_.flush();
  stop_by_tstp();
  proto::ToAgent message;
  message.mutable_resume();
  order(message);
  clock_.go_on(JobClock::kSuspended, Clock::now());
  watch_.heard(Clock::now());
  if (stdin_) stdin_->continued();
}

void Supervisor::on_watch(AgentWatch::Due due) {
  const std::string who = agent_name();
  const std::string silence = std::to_string(watch_.silence() / std::chrono::seconds(1)) + " s";
  switch (due) {
    case AgentWatch::Due::kNothing:
      break;
    case AgentWatch::Due::kSaySilent:
      say(who + " has not answered for " + silence);
      break;
    case AgentWatch::Due::kCloseLease:
      if (watch_.excuse(held_by_debugger(agent_process_))) return;
      if (membership_.ending()) say(who + " does not answer; its keeper ends the job");
      tell(event::AgentLost{host_, who + " did not answer for " + silence + " (--agent-timeout)"});
      agent_.close_lease();
      watch_.expect_end(Clock::now());
      break;
    case AgentWatch::Due::kKillKeeper:
      say(agent_ended_ ? "the keeper does not end; killing it"
                       : "the agent and its keeper do not answer; killing them");
      keeper_killed_ = true;
      kill(agent_.pid(),
           SIGKILL);  // not reaped yet, so the pid is its own; what it leaves comes to us
      break;
  }
}

void Supervisor::on_keeper_gone(int status) {
  keeper_gone_at_ = Clock::now();
  keeper_ended_ = WIFEXITED(status);
  watch_.keeper_gone();
  clock_.go_on(JobClock::kDebugger, *keeper_gone_at_);  // nobody is left whom one could hold
  if (WIFSIGNALED(status) && !keeper_killed_)
    say("the keeper was killed by " + signal_name(WTERMSIG(status)) + "; the job is ended");
}

void Supervisor::on_deadlines(TimePoint now) {
  const auto due = [&](const std::optional<TimePoint>& deadline) {
    return deadline && now >= *deadline;
  };
  if (due(suspend_deadline_)) suspend();
  if (due(answer_by_)) time_out(now);
  if (!answer_by_ && due(job_deadline())) begin_time_out(now);
  if (due(give_up_at_)) {
    // If hvdrun itself stood still, the reader has its time again.
    const bool stood = now > *give_up_at_ + AgentWatch::kTick;
    if (!stood) output_.give_up(now - *reader_patience_, only_still_readers_);
    give_up_at_ = now + (stood ? *reader_patience_ : AgentWatch::kTick);
  }
  if (due(say_why_at_)) {
    say_why_at_.reset();
    if (record_.anyone_runs()) say(record_.first_failure() + "; ending the others");
  }
  on_watch(watch_.tick(now));
}

bool Supervisor::over() const {
  if (!keeper_gone_at_) return false;
  if (agent_.drained() && !control_open_) return true;
  // Nobody may hold the channels open for ever; but what is in them comes out first.
  return Clock::now() >= *keeper_gone_at_ + kLastWords && !agent_.output_paused() &&
         agent_.unread_bytes() == 0;
}

std::map<pid_t, unsigned long long> Supervisor::processes_below() {
  std::map<pid_t, unsigned long long> all;
  for (const Descendant& one : descendants(getpid())) all[one.pid] = one.began;
  return all;
}

// Not the job's: what this process had started before it was hvdrun, as a shell has that ends in
// `x & exec hvdrun …` or puts `> >(tee log)` behind it, and what that left to us: what was there
// already, or is in our session. The job's processes are all in sessions that began below us, and
// nobody can join another session.
bool Supervisor::is_stranger(pid_t child) const {
  const auto earlier = earlier_.find(child);
  return (earlier != earlier_.end() && earlier->second == began(child)) ||
         getsid(child) == getsid(0);
}

// A keeper ends when nobody is left below it whom anybody can end. If it was killed, its agent is
// our child now and ends the job; if both were, so are all that the ranks left, and we end them.
// Who is stuck has been tried for long, and the report names them.
void Supervisor::sweep() {
  if (keeper_ended_) return;
  const bool tried = !record_.facts().stuck.empty();
  const int left = end_descendants(tried ? kSweepOnce : kSweepLimit, nullptr,
                                   [this](pid_t child) { return is_stranger(child); });
  if (left > 0 && !tried)
    say(std::to_string(left) + (left == 1 ? " process" : " processes") + " cannot be ended");
}

// The last output goes out, for as long as its reader takes, if nobody wants the end.
void Supervisor::write_out() {
  for (output_.flush(); !output_.idle();
       output_.flush()) {  // a turn may add words, about a failed sink for one
    const TimePoint tick = Clock::now() + AgentWatch::kTick;
    loop_.turn(give_up_at_ ? std::min(tick, *give_up_at_) : tick);
    on_deadlines(Clock::now());
  }
}

std::optional<TimePoint> Supervisor::next_deadline() const {
  TimePoint soonest = watch_.deadline();
  const auto consider = [&](const std::optional<TimePoint>& at) {
    if (at) soonest = std::min(soonest, *at);
  };
  consider(answer_by_ ? answer_by_ : job_deadline());
  consider(suspend_deadline_);
  consider(say_why_at_);
  consider(give_up_at_);
  consider(output_.next_deadline());
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
  if (reader_patience_ && output_.lost_bytes() > 0)
    say("lost " + std::to_string(output_.lost_bytes()) +
        " bytes of output that nobody read any more");
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
  log_.ended(status, result.seconds);
  output_.say(report(result.verdict, result.facts, result.stderr_tail), Clock::now());
  write_out();
  return status;
}

}  // namespace hvd
