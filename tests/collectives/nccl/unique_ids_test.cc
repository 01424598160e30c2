// How many unique ids so many ranks have, and which of them make one.
#include "collectives/nccl/unique_ids.h"

#include <vector>

#include "tests/support/catch.h"

namespace hvd {
namespace {

std::vector<int> makers(int ranks, int ids) {
  std::vector<int> made;
  for (int rank = 0; rank < ranks; ++rank)
    if (makes_unique_id(rank, ranks, ids)) made.push_back(rank);
  return made;
}

// NCCL's src/bootstrap.cc, rootIdFromRank(): the id by which a rank connects.
int id_of(int rank, int ranks, int ids) {
  const int larger = ranks % ids, each = ranks / ids, in_larger = larger * (each + 1);
  return rank < in_larger ? rank / (each + 1) : (rank - in_larger) / each + larger;
}

}  // namespace

TEST_CASE("unique ids: one for each so many ranks, and for those beyond") {
  CHECK(unique_ids_for(1, true, 128) == 1);
  CHECK(unique_ids_for(128, true, 128) == 1);
  CHECK(unique_ids_for(129, true, 128) == 2);
  CHECK(unique_ids_for(256, true, 128) == 2);
  CHECK(unique_ids_for(257, true, 128) == 3);
  for (const int ranks : {1, 128, 129, 257, 4096}) CHECK(unique_ids_for(ranks, false, 128) == 1);
}

TEST_CASE("unique ids: the first rank of each part makes its id, the first parts have one more") {
  CHECK(makers(1, 1) == std::vector{0});
  CHECK(makers(128, 1) == std::vector{0});
  CHECK(makers(129, 2) == std::vector{0, 65});
  CHECK(makers(256, 2) == std::vector{0, 128});
  CHECK(makers(257, 3) == std::vector{0, 86, 172});
  CHECK(makers(5, 5) == std::vector{0, 1, 2, 3, 4});
}

// That rank's process is where the others of its part connect.
TEST_CASE("unique ids: who makes one is the first of those whom NCCL has connect by it") {
  for (int ranks = 1; ranks <= 300; ++ranks)
    for (int ids = 1; ids <= ranks && ids <= 5; ++ids) {
      std::vector<int> first;
      for (int rank = 0; rank < ranks; ++rank)
        if (rank == 0 || id_of(rank, ranks, ids) != id_of(rank - 1, ranks, ids))
          first.push_back(rank);
      CAPTURE(ranks, ids);
      REQUIRE(makers(ranks, ids) == first);
    }
}

}  // namespace hvd
