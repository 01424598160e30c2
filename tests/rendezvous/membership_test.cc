// Membership: who is in, which epoch begins, when the job ends.
#include "rendezvous/membership.h"

#include <csignal>
#include <vector>

#include "tests/rendezvous/membership_jobs.h"
#include "tests/support/catch.h"

namespace hvd {

using namespace std::chrono_literals;

TEST_CASE("membership: a job on one host starts its workers at once") {
  Membership membership = job(1, 3);
  const auto starts = all_of<action::StartWorkers>(membership.begin(kStart));
  REQUIRE(starts.size() == 1);
  REQUIRE(starts[0].worlds.size() == 3);
  CHECK(starts[0].worlds[2].rank == 2);
  CHECK(starts[0].worlds[2].epoch == 0);
  CHECK(membership.apply(event::AgentJoined{0}, kStart).empty());  // not a second time
}

TEST_CASE("membership: a job on several hosts starts its workers when all agents have joined") {
  Membership membership = job(2, 2);
  CHECK(membership.begin(kStart).empty());
  CHECK(membership.apply(event::AgentJoined{1}, kStart).empty());
  const auto starts = all_of<action::StartWorkers>(membership.apply(event::AgentJoined{0}, kStart));
  REQUIRE(starts.size() == 2);
  CHECK(starts[1].host == 1);
  CHECK(starts[1].worlds[0].rank == 2);
}

TEST_CASE("membership: an agent that does not report in time ends the job and is named") {
  Membership membership = job(2, 1);
  membership.begin(kStart);
  membership.apply(event::AgentJoined{0}, kStart + 1s);
  CHECK(membership.next_deadline() == kStart + 30s);
  CHECK(membership.apply(event::TimePassed{}, kStart + 29s).empty());
  const auto ends = all_of<action::EndJob>(membership.apply(event::TimePassed{}, kStart + 30s));
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].cause == EndCause::kStartTimeout);
  CHECK(ends[0].reason == "no agent reported from host1 within 30 s (--start-timeout)");
  CHECK_FALSE(membership.next_deadline());
}

TEST_CASE("membership: workers that do not start in time end the job and are named") {
  Membership membership = job(1, 3);
  membership.begin(kStart);
  membership.apply(event::AgentJoined{0}, kStart);
  membership.apply(event::WorkersStarted{{0, 2}}, kStart + 1s);
  const auto ends = all_of<action::EndJob>(membership.apply(event::TimePassed{}, kStart + 30s));
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].reason == "rank 1 could not be started within 30 s (--start-timeout)");
}

TEST_CASE("membership: an epoch begins when every living rank has asked") {
  Membership membership = running(3);
  CHECK(membership.apply(event::EpochWanted{{0}}, kStart).empty());
  CHECK(membership.apply(event::EpochWanted{{0, 2}}, kStart).empty());
  const auto starts =
      all_of<action::StartEpoch>(membership.apply(event::EpochWanted{{0, 1, 2}}, kStart));
  REQUIRE(starts.size() == 1);
  CHECK(starts[0].epoch == 1);
  REQUIRE(starts[0].members.size() == 3);
  CHECK(starts[0].members[1].world == World{.epoch = 1,
                                            .rank = 1,
                                            .size = 3,
                                            .local_rank = 1,
                                            .local_size = 3,
                                            .cross_rank = 0,
                                            .cross_size = 1,
                                            .host = "host0"});
  CHECK_FALSE(membership.next_deadline());
  // And again, after shutdown() by all.
  const auto next =
      all_of<action::StartEpoch>(membership.apply(event::EpochWanted{{0, 1, 2}}, kStart));
  REQUIRE(next.size() == 1);
  CHECK(next[0].epoch == 2);
}

TEST_CASE(
    "membership: init() is refused after the time-out of the first call, naming who never called") {
  Membership membership = running(4);
  membership.apply(event::EpochWanted{{1}}, kStart + 5s);
  membership.apply(event::EpochWanted{{1, 3}}, kStart + 20s);
  CHECK(membership.next_deadline() == kStart + 35s);
  const auto refusals =
      all_of<action::RefuseEpoch>(membership.apply(event::TimePassed{}, kStart + 35s));
  REQUIRE(refusals.size() == 1);
  CHECK(refusals[0].missing == std::vector<int>{0, 2});
  CHECK(refusals[0].timed_out);
  CHECK(
      refusals[0].reason ==
      "ranks 0, 2 did not call hvd::init() within 30 s (--start-timeout) of the first rank's call");
  CHECK_FALSE(membership.ending());  // a rank that throws ends by itself, and the job by it
}

TEST_CASE("membership: waiting in init() for a rank that has ended ends at once") {
  Membership membership = running(3);
  membership.apply(event::EpochWanted{{0, 1}}, kStart);
  const auto refusals = all_of<action::RefuseEpoch>(
      membership.apply(event::RankEnded{2, false, "rank 2 exited"}, kStart));
  REQUIRE(refusals.size() == 1);
  CHECK(refusals[0].reason == "rank 2 has ended without a call of hvd::init()");
  CHECK_FALSE(refusals[0].timed_out);
  const auto later = all_of<action::RefuseEpoch>(membership.apply(event::EpochWanted{{0}}, kStart));
  CHECK(later.size() == 1);
}

TEST_CASE("membership: who was in an epoch and has ended is missing in the next one") {
  Membership membership = running(3);
  membership.apply(event::EpochWanted{{0, 1, 2}}, kStart);
  membership.apply(event::RankEnded{2, false, "rank 2 exited"}, kStart);
  const auto refusals =
      all_of<action::RefuseEpoch>(membership.apply(event::EpochWanted{{0, 1}}, kStart));
  REQUIRE(refusals.size() == 1);
  CHECK(refusals[0].reason == "rank 2 has ended and cannot take part in the next epoch");
}

TEST_CASE("membership: a failed rank ends a static job, at once if no rank uses libhvd") {
  Membership membership = running(2);
  const auto ends =
      all_of<action::EndJob>(membership.apply(event::RankEnded{1, true, "rank 1 died"}, kStart));
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].cause == EndCause::kRankFailed);
  CHECK(ends[0].first_signal == SIGTERM);
  CHECK(ends[0].after == 0ms);
  CHECK(ends[0].reason == "rank 1 died");
  CHECK(membership.apply(event::RankEnded{0, true, "rank 0 died"}, kStart).empty());  // fallout
  CHECK(membership.cause() == EndCause::kRankFailed);
}

TEST_CASE("membership: survivors that use libhvd get time for last words") {
  Membership membership = running(2);
  membership.apply(event::RankClaimed{0}, kStart);
  const auto ends =
      all_of<action::EndJob>(membership.apply(event::RankEnded{1, true, "rank 1 died"}, kStart));
  REQUIRE(ends.size() == 1);
  CHECK(ends[0].after == 300ms);
}

TEST_CASE("membership: ranks that end well end nothing") {
  Membership membership = running(2);
  CHECK(membership.apply(event::RankEnded{1, false, ""}, kStart).empty());
  CHECK(membership.apply(event::RankEnded{0, false, ""}, kStart).empty());
  CHECK(membership.living() == 0);
  CHECK_FALSE(membership.ending());
}

TEST_CASE("membership: what the user asks for is passed on each time, the first cause stays") {
  Membership membership = running(2);
  const auto first = all_of<action::EndJob>(
      membership.apply(event::EndAsked{EndCause::kInterrupted, SIGINT, "interrupted"}, kStart));
  REQUIRE(first.size() == 1);
  const auto second = all_of<action::EndJob>(
      membership.apply(event::EndAsked{EndCause::kTerminated, SIGKILL, "again"}, kStart));
  REQUIRE(second.size() == 1);
  CHECK(second[0].first_signal == SIGKILL);
  CHECK(membership.cause() == EndCause::kInterrupted);
  const auto refusals =
      all_of<action::RefuseEpoch>(membership.apply(event::EpochWanted{{0}}, kStart));
  REQUIRE(refusals.size() == 1);
  CHECK(refusals[0].reason == "the job is ending: interrupted");
  CHECK_FALSE(refusals[0].timed_out);
}

TEST_CASE("membership: a job that may shrink goes on with the survivors, in their order") {
  std::vector<Host> hosts = {{"a", "", 2}, {"b", "", 2}};
  Membership membership(hosts, assign_slots(hosts, 4), {.size_min = 2, .start_timeout = 30s},
                        kStart);
  membership.begin(kStart);
  membership.apply(event::AgentJoined{0}, kStart);
  membership.apply(event::AgentJoined{1}, kStart);
  membership.apply(event::WorkersStarted{{0, 1, 2, 3}}, kStart);
  membership.apply(event::EpochWanted{{0, 1, 2, 3}}, kStart);
  REQUIRE(membership.epoch() == 1);
  CHECK(membership.apply(event::RankEnded{0, true, "rank 0 died"}, kStart).empty());
  const auto starts =
      all_of<action::StartEpoch>(membership.apply(event::EpochWanted{{1, 2, 3}}, kStart));
  REQUIRE(starts.size() == 1);
  REQUIRE(starts[0].members.size() == 3);
  CHECK(starts[0].members[0].rank == 1);
  CHECK(starts[0].members[0].host == 0);
  CHECK(starts[0].members[0].world == World{.epoch = 2,
                                            .rank = 0,
                                            .size = 3,
                                            .local_rank = 0,
                                            .local_size = 1,
                                            .cross_rank = 0,
                                            .cross_size = 2,
                                            .host = "a"});
  CHECK(starts[0].members[2].host == 1);
  CHECK(starts[0].members[2].world == World{.epoch = 2,
                                            .rank = 2,
                                            .size = 3,
                                            .local_rank = 1,
                                            .local_size = 2,
                                            .cross_rank = 0,
                                            .cross_size = 1,
                                            .host = "b"});
  membership.apply(event::RankEnded{1, true, "rank 1 died"}, kStart);
  const auto ends =
      all_of<action::EndJob>(membership.apply(event::RankEnded{2, true, "rank 2 died"}, kStart));
  CHECK(ends.size() == 1);  // one is left, two are needed
}

TEST_CASE("membership: a lost agent ends a job of fixed size, whatever its ranks did before") {
  for (const bool ended_well : {false, true}) {
    Membership membership = running(2);
    if (ended_well)
      for (int rank : {0, 1}) membership.apply(event::RankEnded{rank, false, ""}, kStart);
    const auto ends = all_of<action::EndJob>(membership.apply(event::AgentLost{0, "gone"}, kStart));
    REQUIRE(ends.size() == 1);
    CHECK(ends[0].cause == EndCause::kAgentLost);
    CHECK(ends[0].first_signal == SIGTERM);
    CHECK(ends[0].after == 0ms);
    CHECK(ends[0].reason == "gone");
    CHECK(membership.living() == 0);
    CHECK_FALSE(membership.next_deadline());
  }
}

TEST_CASE("membership: a lost agent takes its ranks, and the others go on if they are enough") {
  Membership membership = job(3, 2, 4);
  membership.begin(kStart);
  for (int host : {0, 1, 2}) membership.apply(event::AgentJoined{host}, kStart);
  membership.apply(event::WorkersStarted{{0, 1, 2, 3, 4, 5}}, kStart);
  membership.apply(event::EpochWanted{{0, 1, 2, 4, 5}}, kStart);
  // Rank 3 was the last that the others waited for, and rank 2 waits no more.
  const auto actions = membership.apply(event::AgentLost{1, "gone"}, kStart + 1s);
  const auto starts = all_of<action::StartEpoch>(actions);
  CHECK(actions.size() == starts.size());
  REQUIRE(starts.size() == 1);
  REQUIRE(starts[0].members.size() == 4);
  CHECK(starts[0].members[1].host == 0);
  CHECK(starts[0].members[2].host == 2);
  CHECK(starts[0].members[2].rank == 4);
  CHECK(starts[0].members[2].world.rank == 2);
  CHECK(starts[0].members[2].world.size == 4);
  CHECK(membership.living() == 4);
  CHECK(membership.apply(event::RankEnded{2, true, "late news"}, kStart).empty());
  const auto ends = all_of<action::EndJob>(membership.apply(event::AgentLost{2, "gone"}, kStart));
  REQUIRE(ends.size() == 1);  // two are left, four are needed
  CHECK(ends[0].cause == EndCause::kAgentLost);
  CHECK(ends[0].after == 300ms);  // they use libhvd and can notice
}

TEST_CASE(
    "membership: who joins again is started, and in the next epoch behind those that survived") {
  Membership membership = job(2, 2, 2);
  membership.begin(kStart);
  for (int host : {0, 1}) membership.apply(event::AgentJoined{host}, kStart);
  membership.apply(event::WorkersStarted{{0, 1, 2, 3}}, kStart);
  membership.apply(event::EpochWanted{{0, 1, 2, 3}}, kStart);
  CHECK(membership.apply(event::AgentLost{0, "gone"}, kStart).empty());
  membership.apply(event::EpochWanted{{2, 3}}, kStart);
  REQUIRE(membership.epoch() == 2);

  const auto workers =
      all_of<action::StartWorkers>(membership.apply(event::AgentJoined{0}, kStart + 1min));
  REQUIRE(workers.size() == 1);
  CHECK(workers[0].host == 0);
  CHECK(workers[0].worlds.size() == 2);
  CHECK(membership.next_deadline() == kStart + 1min + 30s);
  CHECK(membership.apply(event::AgentJoined{0}, kStart + 1min).empty());  // not a second time
  membership.apply(event::WorkersStarted{{0, 1}}, kStart + 1min);
  CHECK_FALSE(membership.next_deadline());
  CHECK(membership.apply(event::EpochWanted{{0, 1, 3}}, kStart + 1min).empty());
  const auto starts =
      all_of<action::StartEpoch>(membership.apply(event::EpochWanted{{2}}, kStart + 1min));
  REQUIRE(starts.size() == 1);
  std::vector<int> order;
  for (const action::Member& one : starts[0].members) order.push_back(one.rank);
  CHECK(order == std::vector{2, 3, 0, 1});
  CHECK(starts[0].members[2].world == World{.epoch = 3,
                                            .rank = 2,
                                            .size = 4,
                                            .local_rank = 0,
                                            .local_size = 2,
                                            .cross_rank = 1,
                                            .cross_size = 2,
                                            .host = "host0"});
}

TEST_CASE("membership: a host that is added takes part once its agent has joined, not before") {
  Membership membership = running(1, 1);
  membership.apply(event::EpochWanted{{0}}, kStart);
  const std::vector<Host> hosts = {{"host0", "", 1}, {"new", "", 2}};
  std::vector<Slot> slots = assign_slots(hosts, 3);
  slots.erase(slots.begin());
  CHECK(membership.apply(event::HostAdded{{"new", "", 2}, slots}, kStart).empty());
  CHECK_FALSE(membership.next_deadline());
  CHECK(membership.apply(event::EpochWanted{{0}}, kStart).size() == 1);
  REQUIRE(membership.epoch() == 2);
  const auto workers =
      all_of<action::StartWorkers>(membership.apply(event::AgentJoined{1}, kStart));
  REQUIRE(workers.size() == 1);
  CHECK(workers[0].host == 1);
  membership.apply(event::WorkersStarted{{1, 2}}, kStart);
  membership.apply(event::EpochWanted{{0, 2}}, kStart);
  const auto starts = all_of<action::StartEpoch>(membership.apply(event::EpochWanted{{1}}, kStart));
  REQUIRE(starts.size() == 1);
  REQUIRE(starts[0].members.size() == 3);
  CHECK(starts[0].members[0].rank == 0);
  CHECK(starts[0].members[2].world.host == "new");
  CHECK(starts[0].members[2].world.local_rank == 1);
}

TEST_CASE("membership: a job of fixed size takes nobody in") {
  Membership membership = running(2);
  membership.apply(event::AgentLost{0, "gone"}, kStart);
  CHECK(membership.apply(event::AgentJoined{0}, kStart).empty());
}

TEST_CASE("membership: nobody waits for a host that is lost before its ranks run") {
  Membership membership = job(2, 1, 1);
  membership.begin(kStart);
  membership.apply(event::AgentJoined{0}, kStart);
  const auto starts =
      all_of<action::StartWorkers>(membership.apply(event::AgentLost{1, "gone"}, kStart));
  REQUIRE(starts.size() == 1);
  CHECK(starts[0].host == 0);
  membership.apply(event::WorkersStarted{{0}}, kStart);
  CHECK_FALSE(membership.next_deadline());

  Membership later = job(2, 1, 1);
  later.begin(kStart);
  for (int host : {0, 1}) later.apply(event::AgentJoined{host}, kStart);
  later.apply(event::WorkersStarted{{0}}, kStart);
  CHECK(later.next_deadline() == kStart + 30s);
  CHECK(later.apply(event::AgentLost{1, "gone"}, kStart).empty());
  CHECK_FALSE(later.next_deadline());
}

TEST_CASE("membership: a rank that could not be started is not waited for") {
  Membership membership = job(1, 2, 1);
  membership.begin(kStart);
  membership.apply(event::AgentJoined{0}, kStart);
  membership.apply(event::WorkersStarted{{0}}, kStart);
  membership.apply(event::RankEnded{1, true, "no such program"}, kStart);
  CHECK_FALSE(membership.next_deadline());
}

}  // namespace hvd
