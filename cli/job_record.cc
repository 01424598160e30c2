#include "cli/job_record.h"

#include <unistd.h>

#include <utility>

#include "cli/messages.h"
#include "cli/quoted.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

constexpr size_t kAdviceMax = 600;

}  // namespace

JobRecord::JobRecord(const JobSpec& spec, const std::vector<Slot>& slots, TimePoint now)
    : command_(spec.command),
      began_(now),
      started_at_s_(std::time(nullptr)),
      job_(std::to_string(started_at_s_) + "-" + std::to_string(getpid())) {
  seat(slots);
  facts_.size = spec.size;
}

void JobRecord::seat(const std::vector<Slot>& slots) {
  facts_.places.clear();
  for (const Slot& slot : slots) facts_.places.push_back({.host = slot.world.host});
  facts_.size = int(slots.size());
}

std::vector<Event> JobRecord::note(const proto::Started& started) {
  event::WorkersStarted event;
  for (int i = 0; i < started.ranks_size(); ++i) {
    const int rank = started.ranks(i);
    if (!is_rank(rank)) continue;
    event.ranks.push_back(rank);
    if (i < started.pids_size()) facts_.places[size_t(rank)].pid = started.pids(i);
  }
  return {event};
}

std::vector<Event> JobRecord::note(const proto::SpawnFailed& failure, TimePoint at) {
  if (!ends_now(failure.rank())) return {};
  RankEnd& end = facts_.ends.emplace_back();
  end.rank = failure.rank();
  end.at_ns = std::chrono::nanoseconds(at - began_).count();
  end.batch = kOfSpawns;
  end.host = facts_.places[size_t(end.rank)].host;
  end.spawn_error = failure.error();
  const bool of_command = !failure.step().starts_with("chdir");
  end.spawn_step =
      printable(failure.step()) + (of_command ? " of " + shell_word(command_.front()) : "");
  end.spawn_advice = printable(head_of(failure.advice(), kAdviceMax));
  return {event::RankEnded{end.rank, true, describe(end)}};
}

std::vector<Event> JobRecord::note(const proto::RankEnds& ends, const AgentClock& clock) {
  JobFacts together;
  for (const proto::RankEnd& one : ends.ends()) {
    if (!ends_now(one.rank())) continue;
    RankEnd& end = together.ends.emplace_back(from_proto(one));
    end.at_ns = std::chrono::nanoseconds(clock.ours(one.at_clock_ns()) - began_).count();
    end.host = facts_.places[size_t(end.rank)].host;
  }
  facts_.ends.insert(facts_.ends.end(), together.ends.begin(), together.ends.end());
  const Verdict verdict = attribute(together);
  std::vector<Event> events;
  const auto tell = [&](const RankEnd& end) {
    const bool by_itself = end.sent_signal == 0;  // else somebody is ending the job already
    events.emplace_back(
        event::RankEnded{end.rank, by_itself && (end.killed || end.status != 0), describe(end)});
  };
  if (verdict.first) tell(*verdict.first);
  for (const auto* part : {&verdict.fallout, &verdict.also, &verdict.finished})
    for (const RankEnd& end : *part) tell(end);
  return events;
}

bool JobRecord::note_cause(EndCause cause, const std::string& text) {
  if (facts_.cause != EndCause::kNone) return false;
  facts_.cause = cause;
  facts_.cause_text = text;
  return true;
}

void JobRecord::note_agent_lost(const HostFailure& host, bool stopping) {
  if (facts_.lost.size() < kHostLinesMost) facts_.lost.push_back(host);
  const bool made_ranks_fail = facts_.cause == EndCause::kRankFailed && !stopping;
  if (facts_.cause != EndCause::kNone && !made_ranks_fail) return;
  facts_.cause = EndCause::kAgentLost;
  facts_.cause_text = host.why;
}

void JobRecord::note(const proto::Broken& broken) {
  if (broken.lost_link()) facts_.lost_link = printable(head_of(broken.reason(), kReasonMax));
}

void JobRecord::note_init_refused(const std::string& reason, const std::vector<int>& missing) {
  if (!facts_.init_refused.empty()) return;
  facts_.init_refused = reason;
  facts_.never_came = missing;
}

void JobRecord::note_epoch_started() {
  facts_.init_refused.clear();
  facts_.never_came.clear();
  facts_.lost_link.clear();
}

void JobRecord::note_stuck(const std::string& host, const proto::Ended& ended) {
  for (const proto::Stuck& one : ended.stuck())
    facts_.stuck.push_back({.rank = is_rank(one.rank()) ? one.rank() : -1,
                            .host = host,
                            .pid = one.pid(),
                            .why = printable(one.why())});
}

void JobRecord::note_not_started(const std::string& host, const std::string& why) {
  if (facts_.not_started.size() < kHostLinesMost)
    facts_.not_started.push_back({host, why});
  else
    ++facts_.more_not_started;
}

std::string JobRecord::first_failure() const {
  const Verdict verdict = attribute(facts_);
  if (!verdict.first) return verdict.why.empty() ? facts_.cause_text : verdict.why;
  return (verdict.why.empty() ? "" : verdict.why + "; ") + describe(*verdict.first);
}

JobResult JobRecord::result(TimePoint now) const {
  JobResult result;
  result.job = job_;
  result.command = command_;
  result.started_at_s = started_at_s_;
  result.seconds = std::chrono::duration<double>(now - began_).count();
  result.facts = facts_;
  result.verdict = attribute(facts_);
  // What ended the job was the first end that was heard of; who is to blame is known only now.
  if (facts_.cause == EndCause::kRankFailed) result.facts.cause_text = first_failure();
  return result;
}

}  // namespace hvd
