#include "collectives/peers.h"

#include <poll.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "hvd/error.h"
#include "tests/support/catch.h"
#include "tests/support/in_process_peers.h"

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
  CHECK(host.block().rank(1).missing[0] == 1);  // local rank 0 is to blame
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
