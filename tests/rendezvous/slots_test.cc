// Slot assignment, rule by rule, with literals.
#include "rendezvous/slots.h"

#include <random>
#include <string>

#include "runtime/base/error.h"
#include "tests/support/catch.h"

using namespace hvd;

namespace {

// "a0 0/2 1/3": host and rank, local rank/size, cross rank/size; one per slot, joined by " . ".
std::string text(const std::vector<Slot>& slots) {
  std::string out;
  for (const Slot& slot : slots) {
    const World& w = slot.world;
    if (!out.empty()) out += " . ";
    out += w.host + std::to_string(w.rank) + " " + std::to_string(w.local_rank) + "/" +
           std::to_string(w.local_size) + " " + std::to_string(w.cross_rank) + "/" +
           std::to_string(w.cross_size);
  }
  return out;
}

std::string assign(const std::vector<Host>& hosts, int count) {
  return text(assign_slots(hosts, count));
}

Host host(const char* name, int slots) { return {.name = name, .user = "", .slots = slots}; }

}  // namespace

TEST_CASE("slots: fills hosts in the order given and numbers ranks host by host") {
  CHECK(assign({host("a", 2), host("b", 2)}, 4) ==
        "a0 0/2 0/2 . a1 1/2 0/2 . b2 0/2 1/2 . b3 1/2 1/2");
  CHECK(assign({host("b", 1), host("a", 1)}, 2) == "b0 0/1 0/2 . a1 0/1 1/2");
}

TEST_CASE("slots: uneven hosts give a local rank its own cross size") {
  CHECK(assign({host("a", 2), host("b", 4), host("c", 1)}, 7) ==
        "a0 0/2 0/3 . a1 1/2 0/2 . b2 0/4 1/3 . b3 1/4 1/2 . b4 2/4 0/1 . b5 3/4 0/1 . c6 0/1 2/3");
  CHECK(assign({host("a", 1), host("b", 2)}, 3) == "a0 0/1 0/2 . b1 0/2 1/2 . b2 1/2 0/1");
}

TEST_CASE("slots: exactly as many ranks as asked come out, the rest stays idle") {
  CHECK(assign({host("localhost", 4)}, 2) == "localhost0 0/2 0/1 . localhost1 1/2 0/1");
  CHECK(assign({host("a", 2), host("b", 2)}, 2) == "a0 0/2 0/1 . a1 1/2 0/1");
}

TEST_CASE("slots: local size counts the slots given, not those offered") {
  CHECK(assign({host("a", 2), host("b", 2)}, 3) == "a0 0/2 0/2 . a1 1/2 0/1 . b2 0/1 1/2");
}

TEST_CASE("slots: a host without slots has no cross position") {
  CHECK(assign({host("a", 0), host("b", 2)}, 2) == "b0 0/2 0/1 . b1 1/2 0/1");
  CHECK(assign_slots(std::vector{host("a", 0), host("b", 2)}, 2)[0].host == 1);
}

TEST_CASE("slots: no epoch has begun") {
  CHECK(assign_slots(std::vector{host("a", 1)}, 1)[0].world.epoch == 0);
}

TEST_CASE("slots: more ranks than slots is an error that names both numbers") {
  CHECK_THROWS_WITH(
      assign({host("a", 1)}, 2),
      "host \"a\" offers 1 slot but -np 2 was asked; add hosts or slots, or lower -np");
  CHECK_THROWS_WITH(
      assign({host("a", 3), host("b", 4)}, 8),
      "the 2 hosts offer 7 slots together but -np 8 was asked; add hosts or slots, or lower -np");
  CHECK_THROWS_AS(assign({}, 1), Error);
}

TEST_CASE("slots: a job of no ranks and a negative slot count are errors") {
  CHECK_THROWS_WITH(assign({host("a", 1)}, 0), Catch::Contains("at least 1 rank"));
  CHECK_THROWS_WITH(assign({host("a", 1)}, -1), Catch::Contains("-1"));
  CHECK_THROWS_WITH(assign({host("a", 2), host("b", -1)}, 1), Catch::Contains("\"b\" offers -1"));
}

TEST_CASE("slots: totals beyond an int are counted, not wrapped") {
  const std::vector<Host> hosts(40'000, host("a", 65'535));  // 2.6 thousand million slots
  CHECK(assign_slots(hosts, 3).size() == 3);
}

TEST_CASE("slots: no more ranks share a host than its control block holds") {
  CHECK(assign_slots(std::vector{host("a", 5000)}, 1024).size() == 1024);
  CHECK_THROWS_WITH(
      assign({host("a", 5000)}, 1025),
      "host \"a\" would get 1025 ranks; at most 1024 share one host; add hosts, or lower -np");
}

TEST_CASE("slots: for any hosts, ranks are dense and every position is held once") {
  std::mt19937 random(20'261'121);
  for (int round = 0; round < 500; ++round) {
    std::vector<Host> hosts;
    int offered = 0;
    for (int i = 0, n = 1 + int(random() % 6); i < n; ++i) {
      hosts.push_back(host("h", int(random() % 5)));
      offered += hosts.back().slots;
    }
    if (offered == 0) continue;
    const int count = 1 + int(random() % unsigned(offered));
    const std::vector<Slot> slots = assign_slots(hosts, count);
    REQUIRE(slots.size() == size_t(count));
    for (int rank = 0; rank < count; ++rank) {
      const World& w = slots[rank].world;
      REQUIRE(w.rank == rank);
      REQUIRE(w.size == count);
      int same_host = 0, same_local = 0, earlier_local = 0;
      for (const Slot& other : slots) {
        same_host += other.host == slots[rank].host;
        if (other.world.local_rank != w.local_rank) continue;
        ++same_local;
        earlier_local += other.world.rank < rank;
      }
      REQUIRE(w.local_size == same_host);
      REQUIRE(w.local_size <= hosts[slots[rank].host].slots);
      REQUIRE(w.cross_size == same_local);
      REQUIRE(w.cross_rank == earlier_local);
    }
  }
}
