#include "collectives/schedule.h"

#include "tests/support/catch.h"

using namespace hvd;

TEST_CASE("schedule: the longer the tensor, the fewer bytes and the more messages") {
  for (int ranks : {2, 3, 4, 7, 8, 64, 1000}) {
    AllreduceWay before = AllreduceWay::kSwap;
    for (size_t bytes = 4; bytes <= size_t{1} << 32; bytes *= 2) {
      const AllreduceWay way = allreduce_way(bytes / 4, DataType::kFloat32, ranks);
      INFO(ranks << " ranks, " << bytes << " bytes");
      CHECK(way >= before);
      before = way;
      // Bytes decide, whatever they are.
      CHECK(allreduce_way(bytes / 2, DataType::kFloat16, ranks) == way);
      CHECK(allreduce_way(bytes, DataType::kUint8, ranks) == way);
    }
    CHECK(before == AllreduceWay::kRing);
    CHECK(allreduce_way(2, DataType::kFloat32, ranks) == AllreduceWay::kSwap);
  }
}

TEST_CASE("schedule: nothing is halved where a rank is no corner of the cube") {
  for (int ranks : {3, 5, 6, 7, 12, 100})
    for (size_t bytes = 4; bytes <= size_t{1} << 28; bytes *= 2)
      CHECK(allreduce_way(bytes, DataType::kInt8, ranks) != AllreduceWay::kHalve);
}

TEST_CASE("schedule: short broadcasts ride, long ones do not") {
  CHECK(broadcast_rides(0));
  CHECK(broadcast_rides(1024));
  CHECK_FALSE(broadcast_rides(1 << 20));
}
