// That the stand-ins of CUDA and NCCL do what programs that keep the rules ask of them.
#include <memory>

#include "tests/nccl/standin_ranks.h"
#include "tests/support/catch.h"

namespace hvd {
TEST_CASE("standin: an allreduce of ranks as threads") {
  const Settings settings;
  run_communicator(4, [](int rank, Device& device, ncclComm_t comm) {
    const DeviceArray<float> values(std::vector(1000, static_cast<float>(rank + 1)),
                                    device.stream());
    expect(settle(comm, ncclAllReduce(values.data(), values.data(), 1000, ncclFloat32, ncclSum,
                                      comm, device.stream())),
           "ncclAllReduce");
    require(values.read(device.stream()) == std::vector(1000, 10.0F), "the sum of all ranks");
  });
  CHECK(hvd_standin_count("collectives", -1) == 4);
  CHECK(hvd_standin_violations() == 0);
}

TEST_CASE("standin: a broadcast and an allgather in a group are one launch") {
  const Settings settings;
  run_communicator(3, [](int rank, Device& device, ncclComm_t comm) {
    const DeviceArray<int> mine({rank, rank * 10}, device.stream());
    const DeviceArray<int> all(6), root(2);
    expect(ncclGroupStart(), "ncclGroupStart");
    expect(ncclAllGather(mine.data(), all.data(), 2, ncclInt32, comm, device.stream()),
           "ncclAllGather");
    expect(ncclBroadcast(mine.data(), root.data(), 2, ncclInt32, 2, comm, device.stream()),
           "ncclBroadcast");
    expect(settle(comm, ncclGroupEnd()), "ncclGroupEnd");
    require(all.read(device.stream()) == std::vector{0, 0, 1, 10, 2, 20}, "all ranks' parts");
    require(root.read(device.stream()) == std::vector{2, 20}, "the root's part");
  });
  CHECK(hvd_standin_count("collectives", 1) == 2);
  CHECK(hvd_standin_count("collective_launches", 1) == 1);
}

TEST_CASE("standin: an abort ends a collective that waits for a rank") {
  const Settings settings;
  const ncclUniqueId id = unique_id();
  run_ranks(2, [&](int rank, Device& device) {
    ncclComm_t comm = make_communicator(id, 2, rank);
    const DeviceArray<int> values({rank}, device.stream());
    if (rank == 0) {
      expect(settle(comm, ncclAllReduce(values.data(), values.data(), 1, ncclInt32, ncclSum, comm,
                                        device.stream())),
             "ncclAllReduce");
      until("it waits", [] { return hvd_standin_waiting(0) == 1; });
      require(cuStreamQuery(device.stream()) == CUDA_ERROR_NOT_READY, "it is under way");
    }
    expect(ncclCommAbort(comm), "ncclCommAbort");
    device.drain();
  });
}

}  // namespace hvd
