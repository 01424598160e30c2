#include "collectives/peers.h"

#include <poll.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "hvd/error.h"
#include "tests/support/catch.h"
#include "tests/support/in_process_world.h"

using namespace hvd;

namespace {

bool readable(int fd, int timeout_ms = 0) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, timeout_ms) == 1;
}

}  // namespace

TEST_CASE("peers: only those who sleep are rung") {
  InProcessHost host(3);
  auto zero = host.peers(0), one = host.peers(1), two = host.peers(2);
  host.block().rank(1).asleep = 1u << kEngineThread;
  ring_sleepers(*zero);
  CHECK(readable(one->doorbell(kEngineThread)));
  CHECK_FALSE(readable(one->doorbell(kCaller)));
  CHECK_FALSE(readable(two->doorbell(kCaller)));
  CHECK_FALSE(readable(two->doorbell(kEngineThread)));
}

TEST_CASE("peers: the first reason for trouble stays, and everybody is woken") {
  InProcessHost host(2);
  auto zero = host.peers(0), one = host.peers(1);
  raise_trouble(*one, TroubleReason::kAbort, "asked to", std::vector<int>{0});
  raise_trouble(*zero, TroubleReason::kTimeout, "too slow");
  const uint32_t reason = host.block().reason;
  CHECK((reason & 255) == static_cast<uint32_t>(TroubleReason::kAbort));
  CHECK(reason >> 8 == 1);
  CHECK(std::string(host.block().rank(1).reason) == "asked to");
  CHECK(host.block().misses(1, 0));
  CHECK_FALSE(host.block().misses(1, 1));
  CHECK(host.block().trouble >= 2);
  for (Sleeper sleeper : {kCaller, kEngineThread}) {
    CHECK(readable(zero->doorbell(sleeper)));
    CHECK(readable(one->doorbell(sleeper)));
  }
}

TEST_CASE("peers: the in-process agent gives up on a stopped rank, and on no other") {
  InProcessHost host(2);
  auto zero = host.peers(0);
  host.stop(1);
  zero->report_broken();
  // Rank 0 answers what it is asked and never becomes quiet before rank 1 is out of the way.
  uint32_t seen = 0;
  while (host.block().rank(1).dead == 0) {
    seen = host.block().trouble;
    host.block().rank(0).seen = seen;
    REQUIRE(readable(zero->doorbell(kCaller), 10'000));
    uint64_t rings = 0;
    REQUIRE(read(zero->doorbell(kCaller), &rings, sizeof rings) == sizeof rings);
  }
  CHECK(host.block().rank(0).dead == 0);
  host.block().rank(0).quiet = 1;
}

TEST_CASE("peers: segments are made at the first request and refused for all") {
  InProcessHost host(2);
  auto zero = host.peers(0), one = host.peers(1);
  CHECK_FALSE(zero->take_segment(0));
  zero->request_segment(0, 4096);
  CHECK(zero->take_segment(0)->size() == 2);
  CHECK(one->take_segment(0)->size() == 2);
  host.limit_segments(1 << 20, "this host has no more memory");
  one->request_segment(1, 2 << 20);
  CHECK_THROWS_WITH(zero->take_segment(1), "this host has no more memory");
}

TEST_CASE("peers: the in-process store hands values from thread to thread") {
  InProcessHost host(2);
  auto zero = host.peers(0), one = host.peers(1);
  std::jthread setter([&] { one->store().set("key", Bytes{std::byte{1}}); });
  CHECK(zero->store().get("key", Deadline::in(std::chrono::seconds(60))) == Bytes{std::byte{1}});
  CHECK(zero->store().add("count", 2) == 2);
  CHECK(one->store().add("count", 3) == 5);
  CHECK_THROWS_WITH(zero->store().get("none", Deadline::in(std::chrono::milliseconds(1))),
                    Catch::Contains("\"none\""));
}

TEST_CASE("peers: links between ranks of different hosts carry bytes both ways, once per id") {
  InProcessWorld world({1, 2});
  auto zero = world.peers(0), two = world.peers(2);
  CHECK(two->world().rank == 2);
  CHECK(two->world().local_rank == 1);
  CHECK(two->world().cross_size == 2);
  CHECK_FALSE(zero->take_links(0));
  zero->request_links(0, std::vector<int>{1, 2});
  zero->request_links(1, std::vector<int>{2});
  two->request_links(1, std::vector<int>{0});
  const auto first = zero->take_links(0), second = zero->take_links(1), other = two->take_links(1);
  REQUIRE(first->size() == 2);
  REQUIRE(second->size() == 1);
  REQUIRE(other->size() == 1);
  CHECK_FALSE(zero->take_links(1));  // given out once
  REQUIRE(write(second->front().get(), "a", 1) == 1);
  REQUIRE(write(other->front().get(), "b", 1) == 1);
  char byte = 0;
  REQUIRE(readable(other->front().get(), 10'000));
  CHECK((read(other->front().get(), &byte, 1) == 1 && byte == 'a'));
  REQUIRE(readable(second->front().get(), 10'000));
  CHECK((read(second->front().get(), &byte, 1) == 1 && byte == 'b'));
  CHECK_FALSE(readable(first->at(1).get()));
  world.refuse_links("rank 1 cannot be reached");
  zero->request_links(2, std::vector<int>{1});
  CHECK_THROWS_WITH(zero->take_links(2), "rank 1 cannot be reached");
}

TEST_CASE("peers: a death on one host is a word and trouble on the others") {
  InProcessWorld world({2, 1, 1});
  auto zero = world.peers(0), three = world.peers(3);
  world.declare_dead(2);
  for (int host : {0, 2}) {
    ControlBlock& block = world.host(host).block();
    CHECK(block.world_size == 4);
    CHECK(block.fate(2).dead == 1);
    CHECK(block.fate(1).dead == 0);
    CHECK(block.trouble >= 1);
    CHECK((block.reason & 255) == static_cast<uint32_t>(TroubleReason::kElsewhere));
    CHECK(std::string(block.elsewhere) == "rank 2 died");
  }
  CHECK(world.host(1).block().rank(0).dead == 1);
  CHECK(readable(zero->doorbell(kCaller)));
  CHECK(readable(three->doorbell(kEngineThread)));
  // What the words of a local rank say stays there.
  CHECK(world.host(1).block().fate(2).dead == 0);
}

TEST_CASE("peers: who is to blame is noted by its rank in the job, on whichever host it is") {
  InProcessWorld world({67, 3});
  auto one = world.peers(68);
  const std::vector<int> missing{0, 66, 67, 69};
  raise_trouble(*one, TroubleReason::kTimeout, "waited", missing);
  ControlBlock& block = world.host(1).block();
  for (int local_rank = 0; local_rank < 3; ++local_rank)
    for (int rank = 0; rank < 70; ++rank) {
      const bool named = std::find(missing.begin(), missing.end(), rank) != missing.end();
      CHECK(block.misses(local_rank, rank) == (local_rank == 1 && named));
    }
  for (int host : {0, 1})
    for (int k = 0; k < world.host(host).ranks(); ++k) world.host(host).block().rank(k).quiet = 1;
}

TEST_CASE("peers: who breaks the epoch off is heard on all hosts") {
  InProcessWorld world({1, 1});
  auto zero = world.peers(0), one = world.peers(1);
  raise_trouble(*one, TroubleReason::kAbort, "rank 1 called abort()");
  CHECK(std::string(world.host(0).block().elsewhere) == "rank 1 called abort()");
  CHECK(world.host(0).block().trouble >= 1);
  for (int host : {0, 1}) world.host(host).block().rank(0).quiet = 1;
}
