// Membership when it is known which hosts are one: who sits where, and whom it waits for.
#include <csignal>

#include "rendezvous/membership.h"
#include "tests/rendezvous/membership_jobs.h"
#include "tests/support/catch.h"

namespace hvd {

using namespace std::chrono_literals;

TEST_CASE(
    "membership: ranks may be seated anew before any has started, and agents have their time "
    "again") {
  const std::vector<Host> hosts = {{"a", "", 1, true}, {"b", "", 1, true}, {"c", "", 2, true}};
  Membership membership(hosts, assign_slots(hosts, 4), {.start_timeout = 30s}, kStart);
  membership.begin(kStart);
  membership.apply(event::AgentJoined{1}, kStart);
  // a is c: ranks 0 to 2 are there, and a has none.
  std::vector<Host> settled = {{"c", "", 3}, {"b", "", 1}};
  std::vector<Slot> slots = assign_slots(settled, 4);
  for (Slot& slot : slots) slot.host = slot.host == 0 ? 2 : 1;
  CHECK(membership.seat(slots, false, kStart + 20s).empty());
  CHECK(membership.next_deadline() == kStart + 50s);
  const auto starts =
      all_of<action::StartWorkers>(membership.apply(event::AgentJoined{2}, kStart + 21s));
  REQUIRE(starts.size() == 2);
  CHECK(starts[0].host == 1);
  CHECK(starts[0].worlds.at(0).rank == 3);
  CHECK(starts[1].host == 2);
  CHECK(starts[1].worlds.size() == 3);
}

TEST_CASE("membership: seats that wait for no agent start the workers") {
  const std::vector<Host> hosts = {{"a", "", 1, true}, {"b", "", 1, true}};
  Membership membership(hosts, assign_slots(hosts, 2), {.start_timeout = 30s}, kStart);
  membership.apply(event::AgentJoined{1}, kStart);
  std::vector<Slot> slots = assign_slots(std::vector<Host>{{"b", "", 2}}, 2);
  for (Slot& slot : slots) slot.host = 1;
  const auto starts = all_of<action::StartWorkers>(membership.seat(slots, false, kStart));
  REQUIRE(starts.size() == 1);
  CHECK(starts[0].worlds.size() == 2);
  membership.apply(event::EndAsked{EndCause::kInterrupted, SIGINT, "x"}, kStart);
  CHECK(membership.seat(slots, false, kStart).empty());
}

TEST_CASE("membership: workers wait until GPUs were seen") {
  const std::vector<Host> here = {{"a", "", 2}};
  const MembershipOptions options{.start_timeout = 30s, .gpus_unseen = true};
  for (const bool agent_first : {true, false}) {
    Membership membership(here, assign_slots(here, 2), options, kStart);
    CHECK(membership.begin(kStart).empty());
    const Event joined = event::AgentJoined{0}, seen = event::GpusSeen{};
    CHECK(membership.apply(agent_first ? joined : seen, kStart).empty());
    const auto starts =
        all_of<action::StartWorkers>(membership.apply(agent_first ? seen : joined, kStart + 1s));
    REQUIRE(starts.size() == 1);
    CHECK(starts[0].worlds.size() == 2);
    CHECK(membership.next_deadline() == kStart + 31s);
  }
}

TEST_CASE("membership: workers start with their agent where GPUs were seen at once") {
  const std::vector<Host> here = {{"a", "", 2}};
  Membership membership(here, assign_slots(here, 2), {.gpus_unseen = true}, kStart);
  CHECK(membership.apply(event::GpusSeen{}, kStart).empty());
  CHECK(all_of<action::StartWorkers>(membership.begin(kStart)).size() == 1);
}

TEST_CASE("membership: GPUs that are seen start nobody in a job that ends, or before its network") {
  const std::vector<Host> hosts = {{"a", "", 1, true}, {"b", "", 1, true}};
  const MembershipOptions options{.hosts_come = true, .gpus_unseen = true};
  for (const bool ends : {true, false}) {
    Membership membership(hosts, assign_slots(hosts, 2), options, kStart);
    membership.apply(event::AgentJoined{0}, kStart);
    membership.apply(event::AgentJoined{1}, kStart);
    CHECK(membership.seat(assign_slots(hosts, 2), true, kStart).empty());
    if (ends) membership.apply(event::EndAsked{EndCause::kInterrupted, SIGINT, "x"}, kStart);
    CHECK(membership.apply(event::GpusSeen{}, kStart).empty());
    CHECK(all_of<action::StartWorkers>(membership.apply(event::NetworkProven{}, kStart)).size() ==
          (ends ? 0 : 2));
  }
}

TEST_CASE("membership: workers wait until it is known how their hosts reach each other") {
  const std::vector<Host> hosts = {{"a", "", 1, true}, {"b", "", 1, true}};
  Membership membership(hosts, assign_slots(hosts, 2), {.start_timeout = 30s}, kStart);
  membership.seat(assign_slots(hosts, 2), true, kStart);
  CHECK(membership.apply(event::AgentJoined{0}, kStart).empty());
  CHECK(membership.apply(event::AgentJoined{1}, kStart).empty());
  CHECK(membership.next_deadline() == kStart + 30s);
  Membership late = membership;
  CHECK(
      all_of<action::StartWorkers>(membership.apply(event::NetworkProven{}, kStart + 1s)).size() ==
      2);
  const std::vector<Action> actions = late.apply(event::TimePassed{}, kStart + 30s);
  REQUIRE(actions.size() == 1);
  CHECK(std::get<action::EndJob>(actions[0]).reason ==
        "the hosts had not found out how they reach each other within 30 s (--start-timeout)");
  CHECK(late.apply(event::NetworkProven{}, kStart + 31s).empty());
}

TEST_CASE("membership: the network may be proven before the last agent is there") {
  const std::vector<Host> hosts = {{"a", "", 1, true}, {"b", "", 1, true}};
  Membership membership(hosts, assign_slots(hosts, 2), {.start_timeout = 30s}, kStart);
  membership.seat(assign_slots(hosts, 2), true, kStart);
  CHECK(membership.apply(event::NetworkProven{}, kStart).empty());
  CHECK(membership.apply(event::AgentJoined{0}, kStart).empty());
  CHECK(all_of<action::StartWorkers>(membership.apply(event::AgentJoined{1}, kStart)).size() == 2);
}

TEST_CASE("membership: hosts that somebody else sees to have their time before agents have") {
  const std::vector<Host> hosts = {{"a", "", 1, true}};
  Membership membership(hosts, assign_slots(hosts, 1), {.start_timeout = 30s, .hosts_come = true},
                        kStart);
  CHECK_FALSE(membership.next_deadline());
  membership.seat(assign_slots(hosts, 1), false, kStart + 7s);
  CHECK(membership.next_deadline() == kStart + 37s);
}

}  // namespace hvd
