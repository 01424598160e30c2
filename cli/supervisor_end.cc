// What is due when, and the end of a job.
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <exception>

#include "cli/agent/descendants.h"
#include "cli/failure_report.h"
#include "cli/messages.h"
#include "cli/result_file.h"
#include "cli/result_place.h"
#include "cli/supervisor_impl.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kSweepLimit{10'000};
constexpr milliseconds kSweepOnce{300};  // who has been tried for long
constexpr milliseconds kOwnWords{
    2'000};  // of a hvdrun that fails itself, however slow they are read
constexpr int kInterruptsMax = 3;

}  // namespace

// The soonest of what the job's clock counts; nothing while it stands.
std::optional<TimePoint> Supervisor::job_deadline() const {
  std::optional<TimePoint> soonest = membership_.next_deadline();
  if (time_limit_) soonest = soonest ? std::min(*soonest, *time_limit_) : *time_limit_;
  return soonest ? clock_.when(*soonest) : std::nullopt;
}

// The agents are asked first: a debugger may have taken hold of a rank since it last looked, of a
// time limit the user reads what each rank was doing, and if hvdrun itself was stopped all may have
// come in time and wait to be read.
void Supervisor::begin_time_out(TimePoint now) {
  proto::ToAgent message;
  message.mutable_describe();
  if (!ask_all(message)) return time_out(now);
  answer_by_ = now + kAnswerLimit;
}

void Supervisor::on_states(HostAgent& agent, const proto::RankStates& states) {
  if (!answer_by_ || !agent.asked) return;
  const TimePoint now = Clock::now();
  agent.asked = false;
  if (time_limit_ && clock_.time(now) >= *time_limit_ && !clock_.stands() &&
      !membership_.ending() && !record_.all_ended())
    for (std::set<int> told; const proto::RankStatus& one : states.ranks())
      if (is_on(one.rank(), agent) && told.insert(one.rank()).second) say(describe(one));
  if (all_answered()) time_out(now);
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
  output_.limit_readers(kind_patience(), false, Clock::now());
}

void Supervisor::on_interrupt() {
  if (++interrupts_ >= kInterruptsMax) leave();
  const int first_signal = interrupts_ > 1 ? SIGKILL : SIGINT;
  if (record_.all_ended()) return end_what_is_left(first_signal);
  if (interrupts_ == 1)
    say(remote_hosts_ && places_.empty()
            ? "interrupted before all hosts were there; no rank has started"
            : "interrupted; ending the ranks (again: kill them now)");
  tell(event::EndAsked{EndCause::kInterrupted, first_signal, "hvdrun was interrupted"});
}

// As at a time limit, what all ranks have finished counts.
void Supervisor::end_what_is_left(int first_signal) {
  if (suspend_deadline_) resume();  // an end is not put off
  if (interrupts_ == 1)
    say("interrupted; all ranks have ended, and what nobody reads of their output is dropped "
        "(again: kill what they left running)");
  const action::EndJob end{
      .cause = EndCause::kInterrupted, .first_signal = first_signal, .reason = {}};
  order_all(to_message(end));
  limit_end(end);
  output_.limit_readers(kImpatience, interrupts_ > 1, Clock::now());
}

// The agents see the lease close.
void Supervisor::leave() {
  JobResult known = result();
  known.verdict.status = {128 + SIGINT, SIGINT};
  write_early(known, true);
  end_ssh();
  die_by(SIGINT);
}

// Into a file, where an earlier job's would be taken for this one's. A reader of anything else gets
// one text, the last, and may not read.
void Supervisor::write_early(const JobResult& known, bool is_last) {
  if (spec_.result_file.empty()) return;
  if (is_result_file(spec_.result_file) || (is_last && !result_written_))
    write_result_file(spec_.result_file, result_json(known), kImpatience);
}

void Supervisor::on_suspended(HostAgent& agent) {
  agent.asked = false;
  if (suspend_deadline_ && all_answered()) suspend();
}

void Supervisor::suspend() {
  output_.flush();
  const TimePoint stopped_at = Clock::now();
  let_tstp_stop();
  if (remote_hosts_) remote_hosts_->excuse(Clock::now() - stopped_at);
  resume();
  for (const auto& agent : agents_) agent->watch().heard(Clock::now());
  if (stdin_) stdin_->continued();
}

void Supervisor::resume() {
  suspend_deadline_.reset();
  watch_for_stop();
  proto::ToAgent message;
  message.mutable_resume();
  order_all(message);
  clock_.go_on(JobClock::kSuspended, Clock::now());
}

void Supervisor::on_deadlines(TimePoint now) {
  const auto due = [&](const std::optional<TimePoint>& deadline) {
    return deadline && now >= *deadline;
  };
  if (remote_hosts_) remote_hosts_->turn(now);  // knows better than a time-out why a host is late
  if (cleaning_) cleaning_->turn(now);
  if (gpu_look_) gpu_look_->turn(now);
  if (due(suspend_deadline_)) suspend();
  if (due(answer_by_)) time_out(now);
  if (!answer_by_ && due(job_deadline())) begin_time_out(now);
  if (due(say_why_at_)) say_why(now);
  if (due(network_.next_deadline())) prove_network(now);
  if (!membership_.ending()) other_pairs_.tick(now);
  if (due(say_progress_at_)) say_progress(now);
  if (due(are_you_there_at_)) say_are_you_there(now);
  relay_.flush();
  if (!clock_.stands()) relay_.tick(clock_.time(now));
  for (const auto& agent : agents_) {
    // Until it has attached --start-timeout is its time.
    if (agent->remote() && !agent->attached() && !membership_.ending()) agent->heard(now);
    if (agent->pipes().output_paused() && agent->missing_output() > 0) agent->be_patient(now);
    on_watch(*agent, agent->watch().tick(now));
  }
  note_lost(now);
}

// Of a failed rank, a lost agent or a host without one, if the report is not there yet. Who reads
// the ranks' output may stand still, for ever: neither the user nor who looks for the result in a
// file has to wait for that.
void Supervisor::say_why(TimePoint now) {
  // An interrupt has its own words, and an end for readers that stand still.
  const bool speaks = interrupts_ == 0;
  const bool runs = !no_rank_runs(), waits = !runs && (any_paused() || !output_.idle());
  if (speaks && runs && !std::exchange(end_said_, true))
    say(record_.first_failure() + "; ending the others");
  if (speaks && waits)
    say(record_.first_failure() +
        "; all ranks have ended, and who reads their output is waited for (INT: drop it)");
  if (waits) write_early(result(), false);
  say_why_at_ = waits ? std::nullopt : std::optional(now + kReportSoon);
}

// Who hears nothing of hvdrun takes itself for cut off, and ends what it runs.
void Supervisor::say_are_you_there(TimePoint now) {
  are_you_there_at_ = now + AgentWatch::kTick;
  proto::ToAgent message;
  message.mutable_are_you_there();
  for (const auto& agent : agents_)
    if (agent->remote() && agent->attached() && agent->control_open() && !agent->keeper_gone())
      agent->order(server_, message);
}

bool Supervisor::over() const {
  const TimePoint now = Clock::now();
  if (remote_hosts_ && remote_hosts_->waiting()) return false;
  return std::all_of(agents_.begin(), agents_.end(), [&](const auto& one) {
    // Who has said after all that nothing is left there need not be looked at.
    const bool cleans = cleaning_ && cleaning_->waits_for(one->number()) && !one->ended();
    return one->over(now) && !cleans;
  });
}

bool Supervisor::no_rank_runs() const {
  return record_.all_ended() || std::all_of(agents_.begin(), agents_.end(),
                                            [](const auto& one) { return one->keeper_gone(); });
}

// An ssh ends with hvdrun, but what it started for a jump host does not.
void Supervisor::end_ssh() {
  if (remote_hosts_) remote_hosts_->end();
  if (cleaning_) cleaning_->end();
  gpu_look_.reset();
}

// A keeper ends when nobody is left below it whom anybody can end. If it was killed, its agent is
// our child now and ends the job; if both were, so are all that the ranks left, and we end them.
// Who is stuck has been tried for long, and the report names them.
void Supervisor::sweep() {
  if (std::all_of(agents_.begin(), agents_.end(),
                  [](const auto& one) { return one->keeper_ended(); }))
    return;
  const bool tried = !record_.facts().stuck.empty();
  const int left = end_descendants(tried ? kSweepOnce : kSweepLimit, nullptr,
                                   [this](pid_t child) { return strangers_.have(child); });
  if (left > 0 && !tried)
    say(std::to_string(left) + (left == 1 ? " process" : " processes") + " cannot be ended");
}

// The last output goes out, for as long as its reader takes, if nobody wants the end.
void Supervisor::write_out() {
  for (output_.flush(); !output_.idle();
       output_.flush()) {  // a turn may add words, about a failed sink for one
    const TimePoint tick = Clock::now() + AgentWatch::kTick;
    loop_.turn(std::min(tick, output_.next_deadline().value_or(tick)));
    const TimePoint now = Clock::now();
    on_deadlines(now);
    output_.tick(now, true);
  }
}

void Supervisor::write_what_was_said() noexcept try {
  for (const auto& agent : agents_) agent->close_lease();  // nothing runs on meanwhile
  end_ssh();
  output_.finish();
  output_.limit_readers(kImpatience, true, Clock::now());
  const TimePoint last = Clock::now() + kOwnWords;
  for (output_.flush(); !output_.idle() && Clock::now() < last; output_.flush()) {
    std::vector<pollfd> written;
    for (const auto& sink : output_.sinks()) {
      sink->clear_wake();
      written.push_back({sink->wake_fd(), POLLIN, 0});
    }
    const Deadline look = Deadline::at(std::min(last, output_.next_deadline().value_or(last)));
    if (!output_.idle()) poll(written.data(), written.size(), look.poll_timeout_ms());
    output_.tick(Clock::now(), true);
  }
} catch (const std::exception&) {
  // Whoever calls has something worse to say.
}

std::optional<TimePoint> Supervisor::next_deadline() const {
  const TimePoint now = Clock::now();
  TimePoint soonest = now + AgentWatch::kTick;
  const auto consider = [&](const std::optional<TimePoint>& at) {
    if (at) soonest = std::min(soonest, *at);
  };
  consider(answer_by_ ? answer_by_ : job_deadline());
  if (const auto at = relay_.deadline()) consider(clock_.when(*at));
  consider(suspend_deadline_);
  consider(say_why_at_);
  consider(output_.next_deadline());
  consider(network_.next_deadline());
  if (!membership_.ending()) consider(other_pairs_.next_deadline());
  consider(say_progress_at_);
  consider(are_you_there_at_);
  if (remote_hosts_) consider(remote_hosts_->next_deadline());
  if (cleaning_) consider(cleaning_->next_deadline());
  if (gpu_look_) consider(gpu_look_->next_deadline());
  for (const auto& agent : agents_) {
    consider(agent->watch().deadline());
    if (!agent->over(now)) consider(agent->over_at());
  }
  return soonest;
}

ExitStatus Supervisor::run() {
  while (!over()) {
    loop_.turn(next_deadline());
    const TimePoint now = Clock::now();
    on_deadlines(now);
    output_.tick(now, no_rank_runs(), [&](int host) {
      const HostAgent* const agent = agent_of(host);
      return agent != nullptr && agent->sends(now);
    });
    output_.flush();
  }
  return finish();
}

// As far as it is known now.
JobResult Supervisor::result() const {
  JobResult result = record_.result(Clock::now());
  if (result.verdict.first) result.stderr_tail = output_.stderr_tail(result.verdict.first->rank);
  result.lost_output_bytes = output_.lost_bytes() + never_came_bytes_;
  result.split_lines = output_.split_lines();
  return result;
}

void Supervisor::note_what_never_came() {
  for (const auto& agent : agents_) {
    const int64_t bytes = agent->missing_output();
    if (bytes == 0) continue;
    never_came_bytes_ += bytes;
    say("lost " + std::to_string(bytes) + " bytes of output of " + agent->host().name +
        " that had not come when its " + (agent->remote() ? "ssh" : "agent") + " ended");
  }
}

ExitStatus Supervisor::finish() {
  fault_point("hvdrun_finish");
  end_ssh();  // also one that still asks what is known by now
  sweep();
  note_lost(Clock::now());
  output_.finish();
  write_out();
  on_sink();
  note_what_never_came();
  if (output_.lost() || never_came_bytes_ > 0) record_.note_output_lost();
  if (output_.unread_bytes() > 0)
    say("lost " + std::to_string(output_.unread_bytes()) +
        " bytes of output that nobody read in time");
  say_new_keys();       // if it has ended before all hosts were there
  say_why_at_.reset();  // the report does
  const JobResult result = this->result();
  ExitStatus status = result.verdict.status;
  std::string trouble;
  if (spec_.size_open)  // the ranks' folders were never made
    make_folder_of_result(spec_.result_file, spec_.output_directory, spec_.size);
  if (!spec_.result_file.empty())
    trouble = write_result_file(spec_.result_file, result_json(result));
  result_written_ = true;
  if (!trouble.empty()) say(trouble);
  if (!trouble.empty() && status.code == 0) status.code = kExitOwnFailure;
  log_.ended(status, result.seconds);
  output_.say(report(result.verdict, result.facts, result.stderr_tail), Clock::now());
  write_out();
  return status;
}

}  // namespace hvd
