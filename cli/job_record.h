// What has become of a job's ranks so far: the facts that events and the report at the end are made
// from.
//
// Lives on the supervisor's loop.
#pragma once

#include <ctime>
#include <set>
#include <string>
#include <vector>

#include "cli/agent_clock.h"
#include "cli/failure_report.h"
#include "cli/job_spec.h"
#include "cli/result_file.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/membership.h"
#include "rendezvous/slots.h"
#include "runtime/base/deadline.h"

namespace hvd {

class JobRecord {
 public:
  JobRecord(const JobSpec& spec, const std::vector<Slot>& slots, TimePoint now);

  void seat(
      const std::vector<Slot>& slots);  // ranks have other hosts, or are more, than was thought
  const std::string& job() const { return job_; }  // a name for this run, unique on this machine

  // Each returns what the Membership is to be told. Of ranks that ended together the likeliest
  // cause comes first: it is the one that the user reads about while the job ends.
  std::vector<Event> note(const proto::Started& started);
  // `at`: when it was, by our clock.
  std::vector<Event> note(const proto::SpawnFailed& failure, TimePoint at);
  // `clock`: the agent's.
  std::vector<Event> note(const proto::RankEnds& ends, const AgentClock& clock);

  // The first cause stays; false if there was one.
  bool note_cause(EndCause cause, const std::string& text);
  // The agent ended without a last word: that outweighs what ranks did, unless it had heard that
  // the job ends, `stopping`, since then it lived when the first of them failed.
  void note_agent_lost(const HostFailure& host, bool stopping);
  void note(const proto::Broken& broken);  // the first that is heard of what broke the epoch
  void note_init_refused(const std::string& reason, const std::vector<int>& missing);
  void note_not_started(const std::string& host, const std::string& why);
  void note_epoch_started();  // what was refused before has been got over
  void note_stuck(const std::string& host, const proto::Ended& ended);
  void note_output_lost() { facts_.output_lost = true; }
  void note_input_lost(const std::string& why) { facts_.input_error = why; }

  bool all_ended() const { return int(ended_.size()) == facts_.size; }
  const JobFacts& facts() const { return facts_; }
  // As far as it is known now: who was first, and how it ended.
  std::string first_failure() const;
  JobResult result(TimePoint now) const;  // without output

 private:
  bool is_rank(int rank) const { return rank >= 0 && rank < int(facts_.places.size()); }
  // Whatever an agent repeats, a rank ends once.
  bool ends_now(int rank) { return is_rank(rank) && ended_.insert(rank).second; }

  const std::vector<std::string> command_;
  const TimePoint began_;
  const std::time_t started_at_s_;
  const std::string job_;
  std::set<int> ended_;
  JobFacts facts_;
};

}  // namespace hvd
