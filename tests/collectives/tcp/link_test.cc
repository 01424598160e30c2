// Which links are far, and that all go by it.
#include "collectives/tcp/link.h"

#include <atomic>
#include <vector>

#include "tests/collectives/calls.h"
#include "tests/support/catch.h"
#include "tests/support/in_process_world.h"
#include "tests/support/ranks.h"

using namespace hvd;

TEST_CASE("link: one over loopback is not far, one of which nothing is known is") {
  auto [one, other] = connected_pair();
  CHECK_FALSE(Link(0, std::move(one)).is_far());
  CHECK_FALSE(Link(1, std::move(other)).is_far());
  auto [here, there] = connected_far();
  CHECK(Link(0, std::move(here)).is_far());
  CHECK(Link(1, std::move(there)).is_far());
}

// Else the ring's bytes would go in an order that others do not expect.
TEST_CASE("link: a far one is heard of by all who agree") {
  const std::vector<int> hosts = GENERATE(std::vector{1, 1, 1}, std::vector{1, 1, 1, 1},
                                          std::vector{2, 2}, std::vector{2, 1, 2});
  const int first = GENERATE(0, 1);
  RankThreads ranks(hosts, [](Rank&) { return nullptr; });
  std::atomic<int> links = first;
  ranks.world().make_links_by(
      [&] { return links++ % 2 == 0 ? connected_far() : connected_pair(); });
  const bool flat = hosts.size() == static_cast<size_t>(ranks.size());
  const CommunicatorFactory factory = flat ? tcp_factory() : hierarchical_factory(hosts);
  ranks.run([&](Rank& rank) {
    rank.communicator = factory(rank);
    const auto call = make_call(rank, kShapes[2]);
    rank.complete(call->operation);
    verify(rank, kShapes[2], *call);
  });
  CHECK(links > 1);
}
