// That the stand-ins of CUDA and NCCL do what programs that keep the rules ask of them.
#include <memory>

#include "tests/collectives/nccl/standin_ranks.h"
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

TEST_CASE("standin: a split makes a communicator for each color, in the order of the keys") {
  const Settings settings;
  run_communicator(4, [](int rank, Device& device, ncclComm_t comm) {
    // 3 and 1 by their keys, 0 alone, 2 nowhere.
    const int color = rank == 2 ? NCCL_SPLIT_NOCOLOR : rank % 2;
    ncclComm_t child = nullptr;
    expect(settle(comm, ncclCommSplit(comm, color, -rank, &child, nullptr)), "ncclCommSplit");
    require((child == nullptr) == (rank == 2), "a member has a communicator");
    if (child == nullptr) return;
    const size_t size = color == 1 ? 2 : 1;
    const DeviceArray<int> mine({rank}, device.stream()), all(size);
    expect(
        settle(child, ncclAllGather(mine.data(), all.data(), 1, ncclInt32, child, device.stream())),
        "ncclAllGather");
    const std::vector<int> members = color == 1 ? std::vector{3, 1} : std::vector{0};
    require(all.read(device.stream()) == members, "the members in their order");
    finalize_and_destroy(child);
  });
  CHECK(hvd_standin_violations() == 0);
}

TEST_CASE("standin: a communicator of several unique ids, and a blocking one") {
  const Settings settings;
  ncclUniqueId ids[] = {unique_id(), unique_id()};
  const ncclUniqueId one = unique_id();
  run_ranks(2, [&](int rank, Device& device) {
    ncclConfig_t config = non_blocking(), waits = NCCL_CONFIG_INITIALIZER;
    ncclComm_t many = nullptr, blocking = nullptr;
    require(ncclCommInitRankScalable(&many, 2, rank, 2, ids, &config) == ncclInProgress,
            "under way");
    expect(settle(many, ncclInProgress), "ncclCommInitRankScalable");
    expect(ncclCommInitRankConfig(&blocking, 2, one, rank, &waits), "ncclCommInitRankConfig");
    const DeviceArray<int> values({1}, device.stream());
    expect(ncclAllReduce(values.data(), values.data(), 1, ncclInt32, ncclSum, blocking,
                         device.stream()),
           "ncclAllReduce");
    expect(settle(many, ncclAllReduce(values.data(), values.data(), 1, ncclInt32, ncclSum, many,
                                      device.stream())),
           "ncclAllReduce");
    require(values.read(device.stream()) == std::vector{4}, "both sums");
    finalize_and_destroy(many);
    finalize_and_destroy(blocking);
  });
}

TEST_CASE("standin: one thread has several ranks in a group") {
  const Settings settings;
  const ncclUniqueId id = unique_id();
  const Device first(0), second(1);
  const DeviceArray<int> values({5}, second.stream());
  ncclConfig_t config = non_blocking();
  ncclComm_t comms[2] = {};
  expect(ncclGroupStart(), "ncclGroupStart");
  for (int rank = 0; rank < 2; ++rank) {
    const Device current(rank);
    CHECK(ncclCommInitRankConfig(&comms[rank], 2, id, rank, &config) == ncclSuccess);
  }
  CHECK(ncclGroupEnd() == ncclInProgress);
  for (ncclComm_t comm : comms) CHECK(settle(comm, ncclInProgress) == ncclSuccess);
  for (ncclComm_t comm : comms) CHECK(ncclCommAbort(comm) == ncclSuccess);
}

TEST_CASE("standin: a slow collective takes its time") {
  const Settings settings{{"slow_us", "20000"}};
  run_communicator(1, [](int, Device& device, ncclComm_t comm) {
    const DeviceArray<int> values({1}, device.stream());
    const TimePoint begin = Clock::now();
    expect(settle(comm, ncclAllReduce(values.data(), values.data(), 1, ncclInt32, ncclSum, comm,
                                      device.stream())),
           "ncclAllReduce");
    device.drain();
    require(Clock::now() - begin >= std::chrono::milliseconds(20), "20 ms");
  });
}

}  // namespace hvd
