#include "cli/job_record.h"

#include <cerrno>

#include "tests/support/catch.h"

using namespace hvd;

TEST_CASE("job record: what an agent advises is shown cleaned and cut") {
  JobSpec spec;
  spec.size = 1;
  spec.command = {"./train"};
  JobRecord record(spec, assign_slots(std::vector<Host>{{"h1", "", 1}}, 1), Clock::now());
  proto::SpawnFailed failure;
  failure.set_error(ENOENT);
  failure.set_step("exec");
  failure.set_advice("look:\x1b[2J\n" + std::string(1u << 20, 'x'));
  const std::vector<Event> events = record.note(failure, Clock::now());
  REQUIRE(events.size() == 1);
  const std::string words = std::get<event::RankEnded>(events[0]).how;
  CHECK_THAT(words, Catch::Contains("exec of ./train: No such file or directory): look:?[2J?xxx"));
  CHECK(words.size() < 1000);
}

TEST_CASE("job record: a rank that died before another could not be started was first") {
  for (const bool died_before : {true, false}) {
    JobSpec spec;
    spec.size = 3;
    spec.command = {"./train"};
    const TimePoint begin = Clock::now();
    JobRecord record(spec, assign_slots(std::vector<Host>{{"h1", "", 2}, {"h2", "", 1}}, 3), begin);
    const TimePoint death = begin + std::chrono::seconds(died_before ? 1 : 2);
    for (const int rank : {1, 2}) {  // on either host
      proto::SpawnFailed failure;
      failure.set_rank(rank);
      failure.set_error(ENOENT);
      failure.set_step("exec");
      record.note(failure, begin + std::chrono::milliseconds(1500 + rank));
    }
    proto::RankEnds ends;
    proto::RankEnd& end = *ends.add_ends();
    end.set_rank(0);
    end.set_status(3);
    end.set_at_clock_ns(std::chrono::nanoseconds(death.time_since_epoch()).count());
    record.note(ends, AgentClock{});  // the same as ours
    record.note_cause(EndCause::kRankFailed, "");
    const Verdict verdict = record.result(Clock::now()).verdict;
    REQUIRE(verdict.first);
    CHECK(verdict.first->rank == (died_before ? 0 : 1));
    CHECK(verdict.status.code == (died_before ? 3 : 127));
  }
}

TEST_CASE("job record: ends stay in a host's own order while its clock is known better by and by") {
  JobSpec spec;
  spec.size = 2;
  spec.command = {"./train"};
  const TimePoint begin = Clock::now();
  JobRecord record(spec, assign_slots(std::vector<Host>{{"h1", "", 2}}, 2), begin);
  AgentClock clock;
  for (const int rank : {0, 1}) {
    proto::RankEnds ends;
    proto::RankEnd& end = *ends.add_ends();
    end.set_rank(rank);
    end.set_status(3 + rank);
    end.set_order(rank + 1);
    end.set_batch(rank + 1);
    clock.note(1'000'000, begin + std::chrono::milliseconds(21 - 10 * rank));
    end.set_at_clock_ns(0);
    record.note(ends, clock);
  }
  record.note_cause(EndCause::kRankFailed, "");
  const Verdict verdict = record.result(Clock::now()).verdict;
  REQUIRE(verdict.first);
  CHECK(verdict.first->rank == 0);
  CHECK(verdict.status.code == 3);
}

TEST_CASE("job record: hosts that do not start are listed up to a limit, and then counted") {
  JobRecord record({}, {}, Clock::now());
  for (int i = 0; i < 15; ++i) record.note_not_started("h" + std::to_string(i), "refused");
  REQUIRE(record.facts().not_started.size() == kHostLinesMost);
  CHECK(record.facts().not_started.back().host == "h9");
  CHECK(record.facts().more_not_started == 5);
}

TEST_CASE(
    "job record: a host that heard of a rank's failure before it was lost is not its reason") {
  const auto seen = [](bool stopping) {
    JobSpec spec;
    spec.size = 2;
    spec.command = {"./train"};
    const std::vector<Host> hosts{{"h1", "", 1}, {"h2", "", 1}};
    JobRecord record(spec, assign_slots(hosts, 2), Clock::now());
    proto::RankEnds ends;
    ends.add_ends()->set_status(7);
    record.note(ends, AgentClock{});
    record.note_cause(EndCause::kRankFailed, "rank 0 exited with code 7");
    record.note_agent_lost({"h2", "the agent on h2 was lost"}, stopping);
    return record.result(Clock::now());
  };
  const JobResult fallout = seen(true);
  CHECK(fallout.facts.cause == EndCause::kRankFailed);
  CHECK(fallout.verdict.status.code == 7);
  REQUIRE(fallout.verdict.first);
  CHECK(fallout.verdict.first->rank == 0);
  CHECK(fallout.verdict.missing == std::vector{1});
  CHECK_THAT(report(fallout.verdict, fallout.facts, {}),
             Catch::StartsWith("hvdrun: fallout, too: the agent on h2 was lost\n"
                               "hvdrun: first failure: rank 0 "));
  const JobResult reason = seen(false);
  CHECK(reason.facts.cause == EndCause::kAgentLost);
  CHECK(reason.verdict.status.code == 125);
  CHECK(reason.facts.cause_text == "the agent on h2 was lost");
  CHECK_FALSE(reason.verdict.first);
  CHECK(reason.facts.lost.size() == 1);
}

TEST_CASE("job record: a lost link is why a job failed, until its next world") {
  JobSpec spec;
  spec.size = 1;
  spec.command = {"./train"};
  JobRecord record(spec, assign_slots(std::vector<Host>{{"h1", "", 1}}, 1), Clock::now());
  proto::Broken broken;
  broken.set_reason("rank 0 waited 1 s for rank 1");
  record.note(broken);
  CHECK(record.facts().lost_link.empty());
  broken.set_reason("rank 0 lost its link\x1b to rank 1");
  broken.set_lost_link(true);
  record.note(broken);
  proto::RankEnds ends;
  ends.add_ends()->set_status(3);
  ends.mutable_ends(0)->mutable_last()->set_told(true);
  record.note(ends, AgentClock{});
  record.note_cause(EndCause::kRankFailed, "rank 0 exited with code 3");
  CHECK(record.result(Clock::now()).facts.cause_text == "rank 0 lost its link? to rank 1");
  record.note_epoch_started();
  CHECK(record.result(Clock::now()).facts.cause_text.starts_with("rank 0"));
  CHECK(record.result(Clock::now()).verdict.first->rank == 0);
}
