// What an agent does when it is due, and its end.
#include <utility>

#include "cli/agent/agent_impl.h"
#include "cli/agent/process_state.h"
#include "cli/agent/system_error_text.h"
#include "cli/messages.h"
#include "cli/pipe.h"
#include "cli/quoted.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/last_words.h"

namespace hvd {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLastWords{500};  // on their way to another host, whose ssh is gone

}  // namespace

// A second reason only ever makes the end come sooner.
void Agent::begin_end(proto::Ended::Why why, std::string reason, StopPlan plan) {
  fault_point("agent_begin_end");
  if (!processes_.ending()) {
    ended_.set_why(why);
    ended_.set_reason(std::move(reason));
  }
  if (workers_) {
    workers_->give_up_starting();
    stdin_.expect_no_more();
  }
  processes_.reap_orphans();
  if (memory_ && processes_.suspended()) memory_->resume();
  processes_.begin_end(std::move(plan), Clock::now());
}

void Agent::beat(TimePoint now) {
  next_beat_ = now + kBeat;
  if (key_ && !bootstrapped_) give_sign_of_life();
  if (processes_.suspended()) {
    uplink_.excuse(now);
  } else {
    if (memory_) memory_->look_for_debuggers();
    say_who_was_waited_for();
    say_what_is_slow(now);
    uplink_.beat();
  }
  if (!orphaned_ && uplink_.is_cut_off(now)) {
    orphaned_ = true;
    begin_end(proto::Ended::LEASE_LOST, "nothing was heard of hvdrun", fence());
    // Over ssh's connection it may still be read: by a hvdrun that was stopped, say.
    write_last_words(
        "agent: nothing was heard of hvdrun for 8 s: it was stopped, or this host cut off; "
        "ending what runs here\n");
  }
}

void Agent::say_what_is_slow(TimePoint now) {
  if (!first_look_ || workers_ || processes_.ending()) return;
  if (const auto path = first_look_->take_slow_path(now))
    say(in_quotes(*path) + " does not answer; its ranks are started once it does");
}

void Agent::say_who_was_waited_for() {
  if (!workers_ || processes_.ending()) return;
  const auto told = [this](const Worker& one) {
    return memory_->facts(workers_->slot_of(one)).status.told;
  };
  for (const std::string& words : workers_->take_held_words(told)) say(words);
}

// Whom suspend() did not find would run in a job that stands still.
bool Agent::may_start() const {
  return workers_ && !workers_->all_tried() && !processes_.suspended();
}

bool Agent::ranks_are_over() const {
  if (!workers_) return processes_.ending();
  return workers_->all_tried() && workers_->running() == 0;
}

// Once KILL went out long ago nobody is waited for, rank or not.
void Agent::leave_when_done() {
  const TimePoint now = Clock::now();
  const bool gave_up = processes_.gave_up(now);
  if (finished_ || (!ranks_are_over() && !gave_up)) return;
  if (!processes_.nothing_left()) processes_.reap_orphans();
  if (!processes_.nothing_left() && !gave_up) {
    if (!processes_.ending())
      begin_end(proto::Ended::LEFTOVERS, "ranks left processes running",
                leftovers_end(stop_grace()));
    processes_.hurry(
        now);  // the ranks took the interrupt; what they started in the background did not
    return;
  }
  if (output_) {
    output_->drain();
    if (!output_->empty() && !orphaned_) return;  // a slow reader of hvdrun's is waited for
  }
  fault_point("agent_finish");
  finished_ = now;
  if (gave_up) note_stuck();
  if (output_) ended_.set_output_bytes(output_->framed_bytes());
  send_ends();
  proto::FromAgent message;
  *message.mutable_ended() = ended_;
  uplink_.send(message);
  uplink_.finish();
}

// Who is still there now; a rank that is dead too, as long as its end cannot be had.
void Agent::note_stuck() {
  const auto rank_of = [this](pid_t pid) {
    if (workers_ && workers_->is_running(pid))
      for (const Worker& one : workers_->all())
        if (one.pid == pid) return one.world.rank;
    return -1;
  };
  if (workers_)
    for (const Worker& one : workers_->all()) on_worker_ended(one.world.rank);
  for (const Descendant& one : processes_.all()) {
    const int rank = rank_of(one.pid);
    if (!one.alive && rank < 0) continue;
    proto::Stuck& stuck = *ended_.add_stuck();
    stuck.set_rank(rank);
    stuck.set_pid(one.pid);
    stuck.set_why(why_not_ended(one, kill(one.pid, 0) == 0));
  }
}

std::optional<TimePoint> Agent::next_deadline() const {
  const TimePoint now = Clock::now();
  if (may_start() || processes_.orphans_due()) return now;
  TimePoint soonest = next_beat_;
  if (output_)
    if (const auto at = output_->next_deadline()) soonest = std::min(soonest, *at);
  if (const auto at = processes_.next_deadline(now)) soonest = std::min(soonest, *at);
  if (memory_)
    if (const auto at = memory_->deadline()) soonest = std::min(soonest, *at);
  if (other_hosts_)
    if (const auto at = other_hosts_->next_deadline()) soonest = std::min(soonest, *at);
  return soonest;
}

int Agent::run() {
  while (true) {
    loop_.turn(next_deadline());
    const TimePoint now = Clock::now();
    if (processes_.orphans_due()) processes_.reap_orphans();
    if (now >= next_beat_) beat(now);
    if (output_) output_->on_deadline(now);
    if (memory_) memory_->tick(now);
    if (other_hosts_) other_hosts_->tick(now);
    if (may_start()) start_some();
    if (!finished_) {  // what ends after the last word is nobody's news
      processes_.advance(Clock::now());
      send_ends();
    }
    if (workers_) workers_->begin_batch();
    leave_when_done();
    // What hvdrun has not read yet would be lost with us, the verdict with it: gRPC drops what it
    // reads together with a connection's end. hvdrun may be stopped for as long as its user likes;
    // its end is the lease's.
    if (finished_ && orphaned_ &&
        (!uplink_.open() || !key_ || uplink_.is_cut_off(now) || now >= *finished_ + kLastWords))
      return ended_.stuck_size() > 0 ? kSomeAreStuck : 0;
  }
}

}  // namespace hvd
