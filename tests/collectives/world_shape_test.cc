// On how many hosts ranks are, from what each says.
#include "collectives/world_shape.h"

#include "hvd/error.h"
#include "tests/support/catch.h"

using namespace hvd;

namespace {

std::vector<HostRanks> said_by(const std::vector<int>& ranks_per_host) {
  std::vector<HostRanks> said;
  for (const int count : ranks_per_host) {
    const auto first = static_cast<int>(said.size());
    said.insert(said.end(), static_cast<size_t>(count), HostRanks{first, count});
  }
  return said;
}

}  // namespace

TEST_CASE("world shape: hosts of any number of ranks, and whose a rank is") {
  const WorldShape shape = WorldShape::of(said_by({1, 3, 2}));
  REQUIRE(shape.hosts.size() == 3);
  CHECK(shape.size() == 6);
  CHECK_FALSE(shape.one_host());
  const int hosts[] = {0, 1, 1, 1, 2, 2};
  for (int rank = 0; rank < 6; ++rank) CHECK(shape.host_of(rank) == hosts[rank]);
  CHECK(WorldShape::of(said_by({4})).one_host());
}

TEST_CASE("world shape: ranks that contradict each other are named") {
  auto said = said_by({2, 2});
  said[3] = {0, 4};
  CHECK_THROWS_WITH(WorldShape::of(said),
                    Catch::Contains("rank 2 says that its host has 2 ranks from rank 2 on, rank 3 "
                                    "says that its host has 4 ranks from rank 0 on"));
  for (const HostRanks wrong : {HostRanks{1, 2}, {0, 0}, {0, -1}, {0, 5}, {0, 1 << 30}}) {
    auto others = said_by({2, 2});
    others[0] = wrong;
    CHECK_THROWS_AS(WorldShape::of(others), Error);
  }
}
