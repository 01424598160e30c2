// Membership: who is in, which epoch begins, when the job ends; also under random events.
#include "rendezvous/membership.h"

#include <algorithm>
#include <csignal>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "tests/support/catch.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

const TimePoint kStart{};

Membership job(int hosts, int slots_each, int size_min = 0) {
  std::vector<Host> all;
  for (int i = 0; i < hosts; ++i) all.push_back({"host" + std::to_string(i), "", slots_each});
  return {all,
          assign_slots(all, hosts * slots_each),
          {.size_min = size_min, .start_timeout = 30s},
          kStart};
}

template <typename T>
std::vector<T> all_of(const std::vector<Action>& actions) {
  std::vector<T> found;
  for (const Action& action : actions)
    if (const T* one = std::get_if<T>(&action)) found.push_back(*one);
  return found;
}

// One host whose workers run.
Membership running(int size, int size_min = 0) {
  Membership membership = job(1, size, size_min);
  membership.begin(kStart);
  membership.apply(event::AgentJoined{0}, kStart);
  event::WorkersStarted started;
  for (int rank = 0; rank < size; ++rank) started.ranks.push_back(rank);
  membership.apply(started, kStart);
  return membership;
}

}  // namespace

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

namespace {

// Plays random events against a Membership and holds it to its invariants.
class Random {
 public:
  explicit Random(unsigned seed)
      : random_(seed),
        hosts_(1 + int(random_() % 3)),
        each_(1 + int(random_() % 3)),
        size_(hosts_ * each_),
        size_min_(random_() % 2 ? 0 : 1 + int(random_() % unsigned(size_))),
        membership_(job(hosts_, each_, size_min_)),
        state_(size_t(size_), kPlanned),
        joined_(size_t(hosts_)),
        lost_hosts_(size_t(hosts_)) {}

  void play() {
    take(membership_.begin(now_));
    for (int i = 0; i < 200; ++i) {
      now_ += std::chrono::milliseconds(random_() % 3000);
      take(membership_.apply(next_event(), now_));
      check_deadline();
    }
  }

 private:
  enum State { kPlanned, kOrdered, kRunning, kWaiting, kInEpoch, kEnded };

  int some_rank() { return int(random_() % unsigned(size_)); }

  Event lose(int host) {
    lost_hosts_[size_t(host)] = true;
    for (int rank = host * each_; rank < (host + 1) * each_; ++rank)
      if (std::exchange(state_[size_t(rank)], kEnded) != kEnded) ++lost_;
    return event::AgentLost{host, "host" + std::to_string(host) + " is gone"};
  }

  Event next_event() {
    const int rank = some_rank(), host = rank / each_;
    State& state = state_[size_t(rank)];
    switch (random_() % 12) {
      case 0:
        if (lost_hosts_[size_t(host)]) break;
        joined_[size_t(host)] = true;
        return event::AgentJoined{host};
      case 1:
      case 2:
      case 3:
        if (state == kOrdered) {
          state = kRunning;
          return event::WorkersStarted{{rank}};
        }
        break;
      case 4:
      case 5:
      case 6:
      case 7:
        if (state == kRunning || state == kInEpoch) {
          state = kWaiting;
          return event::EpochWanted{{rank}};
        }
        break;
      case 8:
        if (state == kRunning) return event::RankClaimed{rank};
        break;
      case 9:
        if (state >= kOrdered && state < kEnded && random_() % 4 == 0) {
          const bool failed = state == kOrdered || random_() % 2 == 0;
          lost_ += failed;
          state = kEnded;
          return event::RankEnded{rank, failed, "rank " + std::to_string(rank) + " ended"};
        }
        break;
      case 10:
        if (random_() % 40 == 0)
          return event::EndAsked{EndCause::kInterrupted, SIGINT, "interrupted"};
        break;
      case 11:
        if (random_() % 20 == 0) return lose(host);
        break;
    }
    return event::TimePassed{};
  }

  void take(const std::vector<Action>& actions) {
    std::map<int, World> members;
    for (const Action& action : actions) {
      if (const auto* start = std::get_if<action::StartWorkers>(&action)) on(*start);
      if (const auto* refuse = std::get_if<action::RefuseEpoch>(&action)) on(*refuse);
      if (const auto* end = std::get_if<action::EndJob>(&action)) on(*end);
      const auto* start = std::get_if<action::StartEpoch>(&action);
      if (start == nullptr) continue;
      REQUIRE(start->epoch == membership_.epoch());
      for (const action::Member& member : start->members) {
        REQUIRE_FALSE(lost_hosts_[size_t(member.host)]);
        REQUIRE(member.rank / each_ == member.host);
        REQUIRE(members.emplace(member.rank, member.world).second);
      }
    }
    if (!members.empty()) on_epoch(members);
    REQUIRE((membership_.ending() || !too_few()));  // a job never goes on with too few
    // Workers are started as soon as all agents that can still join have.
    bool all = true;
    for (size_t host = 0; host < joined_.size(); ++host) all &= joined_[host] || lost_hosts_[host];
    if (all && !membership_.ending())
      REQUIRE(std::count(state_.begin(), state_.end(), kPlanned) == 0);
    // Nor is anybody waited for who cannot come.
    if (all && std::count(state_.begin(), state_.end(), kEnded) == size_)
      REQUIRE_FALSE(membership_.next_deadline());
    // Whoever waits is either waited for, or was answered: nobody is forgotten.
    if (std::count(state_.begin(), state_.end(), kWaiting) > 0)
      REQUIRE(membership_.next_deadline());
  }

  bool too_few() const { return size_ - lost_ < (size_min_ > 0 ? size_min_ : size_); }

  void on(const action::EndJob& end) {
    REQUIRE_FALSE(end.reason.empty());
    if (end.cause == EndCause::kRankFailed) REQUIRE(too_few());
    if (end.cause == EndCause::kAgentLost) REQUIRE((too_few() || size_min_ == 0));
  }

  void on(const action::StartWorkers& start) {
    REQUIRE_FALSE(membership_.ending());
    REQUIRE_FALSE(lost_hosts_[size_t(start.host)]);
    for (const World& world : start.worlds) {
      REQUIRE(state_[size_t(world.rank)] == kPlanned);  // nobody is started twice
      state_[size_t(world.rank)] = kOrdered;
    }
  }

  void on(const action::RefuseEpoch& refuse) {
    REQUIRE_FALSE(refuse.reason.empty());
    REQUIRE_FALSE(lost_hosts_[size_t(refuse.host)]);
    for (int rank = refuse.host * each_; rank < (refuse.host + 1) * each_; ++rank)
      if (state_[size_t(rank)] == kWaiting) state_[size_t(rank)] = kRunning;
  }

  void on_epoch(const std::map<int, World>& members) {
    REQUIRE_FALSE(membership_.ending());
    REQUIRE(membership_.epoch() == ++epoch_);
    int next = 0;
    std::set<std::pair<int, int>> places;
    for (const auto& [rank, world] : members) {
      REQUIRE(state_[size_t(rank)] == kWaiting);
      state_[size_t(rank)] = kInEpoch;
      REQUIRE(world.epoch == epoch_);
      REQUIRE(world.rank == next++);  // dense, and in the order of their first ranks
      REQUIRE(world.size == int(members.size()));
      REQUIRE(world.local_rank < world.local_size);
      REQUIRE(world.cross_rank < world.cross_size);
      REQUIRE(places.emplace(rank / each_, world.local_rank).second);
    }
    for (int rank = 0; rank < size_; ++rank)
      REQUIRE(
          (state_[size_t(rank)] == kEnded || members.contains(rank)));  // every living rank is in
    // Its first rank was in the previous epoch if anyone survived: members never come back or anew.
    if (epoch_ > 1) REQUIRE(previous_.contains(members.begin()->first));
    previous_ = members;
  }

  void check_deadline() {
    const auto deadline = membership_.next_deadline();
    if (!deadline || now_ < *deadline) return;
    take(membership_.apply(event::TimePassed{}, now_));
    const auto next = membership_.next_deadline();
    REQUIRE((!next || *next > now_));  // a deadline that passed is dealt with, or a loop would spin
  }

  std::mt19937 random_;
  const int hosts_, each_, size_, size_min_;
  Membership membership_;
  std::vector<State> state_;
  std::vector<char> joined_, lost_hosts_;
  int lost_ = 0;  // ranks
  TimePoint now_ = kStart;
  uint32_t epoch_ = 0;
  std::map<int, World> previous_;
};

}  // namespace

TEST_CASE("membership: keeps its invariants under random events") {
  for (unsigned seed = 1; seed <= 3000; ++seed) {
    CAPTURE(seed);
    Random(seed).play();
  }
}

}  // namespace hvd
