// What the stand-in of NCCL can be told to do wrong, and that an abort ends all of it.
#include <atomic>
#include <thread>

#include "tests/collectives/nccl/standin_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/until.h"

namespace hvd {
namespace {

ncclResult_t sum(const DeviceArray<float>& values, ncclComm_t comm, CUstream stream) {
  return settle(
      comm, ncclAllReduce(values.data(), values.data(), 10, ncclFloat32, ncclSum, comm, stream));
}

void hold(const unsigned*, const unsigned*, void**) {}

ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  expect(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
  return state;
}

}  // namespace

TEST_CASE("standin faults: an asynchronous error comes with the collective it was set to") {
  const Settings settings{{"async_error_after", "2"}, {"async_error", "3"}, {"fault_rank", "1"}};
  const ncclUniqueId id = unique_id();
  run_ranks(2, [&](int rank, Device& device) {
    ncclComm_t comm = make_communicator(id, 2, rank);
    const DeviceArray<float> values(10);
    expect(sum(values, comm, device.stream()), "ncclAllReduce");
    device.drain();
    require(state_of(comm) == ncclSuccess, "the first ends well");
    const ncclResult_t second = sum(values, comm, device.stream());
    require(second == ncclSuccess || rank == 1, "it is launched, or the error is told at once");
    if (rank == 1) until("the error", [&] { return state_of(comm) == ncclInternalError; });
    if (rank == 0) until("the other waits", [&] { return hvd_standin_waiting(0) == 1; });
    require(cuStreamQuery(device.stream()) == CUDA_ERROR_NOT_READY, "it does not end");
    require(rank == 0 || sum(values, comm, device.stream()) == ncclInternalError, "it is refused");
    expect(ncclCommAbort(comm), "ncclCommAbort");
    device.drain();
  });
}

TEST_CASE("standin faults: making a communicator fails at one rank, and waits at the other") {
  const Settings settings{{"init_result_nccl", "2"}, {"fault_rank", "1"}};
  const ncclUniqueId id = unique_id();
  std::atomic<bool> failed = false;
  run_ranks(2, [&](int rank, Device&) {
    ncclConfig_t config = non_blocking();
    ncclComm_t comm = nullptr;
    require(ncclCommInitRankConfig(&comm, 2, id, rank, &config) == ncclInProgress, "under way");
    if (rank == 1) {
      require(settle(comm, ncclInProgress) == ncclSystemError, "its error");
      failed = true;
    }
    until("it failed", [&] { return failed.load(); });
    until_quiet();
    require(rank == 1 || state_of(comm) == ncclInProgress, "the other one waits");
    expect(ncclCommAbort(comm), "ncclCommAbort");
  });
}

TEST_CASE("standin faults: making a communicator never ends but by an abort") {
  const Settings settings{{"init_hangs", "1"}, {"fault_rank", "0"}};
  const ncclUniqueId id = unique_id();
  run_ranks(2, [&](int rank, Device&) {
    ncclConfig_t config = non_blocking();
    ncclComm_t comm = nullptr;
    require(ncclCommInitRankConfig(&comm, 2, id, rank, &config) == ncclInProgress, "under way");
    until_quiet();
    require(state_of(comm) == ncclInProgress, "still under way");
    expect(ncclCommAbort(comm), "ncclCommAbort");
  });
}

TEST_CASE("standin faults: neither a window nor leaving ends but by an abort") {
  const bool leaves = GENERATE(true, false);
  const Settings settings{{"window_hangs", "1"}, {"finalize_hangs", "1"}, {"fault_rank", "0"}};
  const ncclUniqueId id = unique_id();
  run_ranks(2, [&](int rank, Device&) {
    ncclComm_t comm = make_communicator(id, 2, rank);
    void* memory = nullptr;
    expect(ncclMemAlloc(&memory, 4096), "ncclMemAlloc");
    ncclWindow_t window = nullptr;
    const ncclResult_t result =
        leaves ? ncclCommFinalize(comm) : ncclCommWindowRegister(comm, memory, 4096, &window, 0);
    require(result == (leaves ? ncclInProgress : ncclSuccess), "what it tells");
    until_quiet();
    require(state_of(comm) == ncclInProgress, "still under way");
    expect(ncclCommAbort(comm), "ncclCommAbort");
    expect(ncclMemFree(memory), "ncclMemFree");
  });
  CHECK(hvd_standin_count("aborts", -1) == 2);
}

TEST_CASE("standin faults: a rank that is gone is told, or the others hang") {
  const bool told = GENERATE(true, false);
  const Settings settings{{"peer_death_error", told ? "1" : "0"}};
  const ncclUniqueId id = unique_id();
  std::atomic<int> ready = 0;
  run_ranks(3, [&](int rank, Device& device) {
    ncclComm_t comm = make_communicator(id, 3, rank);
    const DeviceArray<float> values(10);
    ++ready;
    until("all are there", [&] { return ready >= 3; });
    if (rank != 2) {
      expect(sum(values, comm, device.stream()), "ncclAllReduce");
      until("it waits", [&] { return hvd_standin_waiting(rank) == 1; });
      ++ready;
    }
    if (rank == 2) until("the others wait", [&] { return ready == 5; });
    if (rank != 2 && told) until("the news", [&] { return state_of(comm) == ncclRemoteError; });
    if (!told) until_quiet();
    if (rank != 2) require(cuStreamQuery(device.stream()) == CUDA_ERROR_NOT_READY, "it hangs");
    expect(ncclCommAbort(comm), "ncclCommAbort");
    device.drain();
  });
}

TEST_CASE("standin faults: a rank that is gone while a split waits for it") {
  const Settings settings{{"peer_death_error", "1"}};
  const ncclUniqueId id = unique_id();
  std::atomic<bool> split = false;
  run_ranks(2, [&](int rank, Device&) {
    ncclComm_t comm = make_communicator(id, 2, rank), child = nullptr;
    if (rank == 0) {
      const ncclResult_t result = ncclCommSplit(comm, 0, 0, &child, nullptr);
      split = true;
      require(settle(comm, result) == ncclRemoteError, "the split fails");
      require(child == nullptr, "there is no child");
    }
    until("the other splits", [&] { return split.load(); });
    expect(ncclCommAbort(comm), "ncclCommAbort");
  });
}

TEST_CASE("standin faults: an abort of the parent ends a split under way") {
  const Settings settings;
  const ncclUniqueId id = unique_id();
  run_ranks(2, [&](int rank, Device&) {
    ncclComm_t comm = make_communicator(id, 2, rank), child = nullptr;
    if (rank == 0)
      require(ncclCommSplit(comm, 0, 0, &child, nullptr) == ncclInProgress, "under way");
    expect(ncclCommAbort(comm), "ncclCommAbort");
    require(child == nullptr, "there is no child");
  });
}

TEST_CASE("standin faults: an abort waits for what is launched, behind what is before it") {
  const Settings settings{{"held_kernel", "test_held"}};
  const size_t none = 0;
  hvd_standin_kernel("test_held", 0, &none, hold);
  run_ranks(1, [](int, Device& device) {
    ncclComm_t comm = make_communicator(unique_id(), 1, 0);
    const DeviceArray<float> values(10);
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    CUcontext context = nullptr;
    expect(cuModuleLoadData(&module, "image"), "cuModuleLoadData");
    expect(cuModuleGetFunction(&function, module, "test_held"), "cuModuleGetFunction");
    expect(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, device.stream(), nullptr, nullptr),
           "cuLaunchKernel");
    expect(settle(comm, sum(values, comm, device.stream())), "ncclAllReduce");
    expect(cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    std::atomic<bool> over = false;
    std::jthread other([&] {
      cuCtxSetCurrent(context);
      ncclCommAbort(comm);
      over = true;
    });
    until("the abort", [] { return hvd_standin_count("aborts", -1) == 1; });
    until_quiet();
    require(!over, "it waits");
    hvd_standin_set("held_kernel", nullptr);
    other.join();
    device.drain();
  });
}

TEST_CASE(
    "standin faults: the first collective is in progress until all ranks have called theirs") {
  const Settings settings{{"first_collective_connects", "1"}, kAtOnce};
  const ncclUniqueId id = unique_id();
  std::atomic<bool> looked = false;
  run_ranks(2, [&](int rank, Device& device) {
    ncclComm_t comm = make_communicator(id, 2, rank);
    const DeviceArray<float> values(10);
    const auto call = [&] {
      return ncclAllReduce(values.data(), values.data(), 10, ncclFloat32, ncclSum, comm,
                           device.stream());
    };
    if (rank == 1) until("the other has looked", [&] { return looked.load(); });
    const ncclResult_t first = call();
    require(first == ncclInProgress, "it is in progress");
    if (rank == 0) until_quiet();
    require(rank == 1 || state_of(comm) == ncclInProgress, "it still is");
    require(rank == 1 || hvd_standin_count("collective_launches", 0) == 0, "nothing is launched");
    looked = true;
    expect(settle(comm, first), "ncclAllReduce");
    require(call() == ncclSuccess, "later ones wait for nobody");
    device.drain();
    finalize_and_destroy(comm);
  });
}

TEST_CASE("standin faults: a launch that hangs ends by an abort, and a death is told meanwhile") {
  const Settings settings{{"launch_hangs", "2"}, {"fault_rank", "0"}, {"peer_death_error", "1"}};
  const ncclUniqueId id = unique_id();
  std::atomic<bool> called = false;
  run_ranks(2, [&](int rank, Device& device) {
    ncclComm_t comm = make_communicator(id, 2, rank);
    const DeviceArray<float> values(10);
    expect(sum(values, comm, device.stream()), "the first");
    device.drain();
    if (rank == 0) {
      const ncclResult_t told = ncclAllReduce(values.data(), values.data(), 10, ncclFloat32,
                                              ncclSum, comm, device.stream());
      require(told == ncclInProgress, "it is in progress");
      called = true;
      until("the news", [&] { return state_of(comm) == ncclRemoteError; });
      require(cuStreamQuery(device.stream()) == CUDA_SUCCESS, "nothing is launched");
    }
    until("the call", [&] { return called.load(); });
    expect(ncclCommAbort(comm), "ncclCommAbort");
  });
  CHECK(hvd_standin_count("collectives", 0) == 1);
}

TEST_CASE("standin faults: NCCL's calls for a device that is lost fail, and an abort ends") {
  const Settings settings;
  const ncclUniqueId id = unique_id();
  run_ranks(2, [&](int rank, Device& device) {
    ncclComm_t comm = make_communicator(id, 2, rank), other = nullptr;
    void *memory = nullptr, *more = nullptr, *name = nullptr;
    expect(ncclMemAlloc(&memory, 4096), "ncclMemAlloc");
    expect(ncclCommRegister(comm, memory, 4096, &name), "ncclCommRegister");
    if (rank == 0) {
      const DeviceArray<float> values(10);
      expect(sum(values, comm, device.stream()), "ncclAllReduce");
      until("it waits", [] { return hvd_standin_waiting(0) == 1; });
      hvd_standin_set("lost_device", "0");
      ncclConfig_t config = non_blocking();
      require(ncclCommInitRankConfig(&other, 1, unique_id(), 0, &config) == ncclUnhandledCudaError,
              "making one");
      require(ncclCommRegister(comm, memory, 8, &name) == ncclUnhandledCudaError, "registering");
      require(ncclCommDeregister(comm, name) == ncclUnhandledCudaError, "deregistering");
      require(ncclMemAlloc(&more, 1) == ncclUnhandledCudaError, "memory");
      require(state_of(comm) == ncclSuccess, "nothing of it is told asynchronously");
      require(sum(values, comm, device.stream()) == ncclUnhandledCudaError, "a collective");
      require(std::string(ncclGetLastError(comm)) == "Cuda failure 'unspecified launch failure'",
              "its text");
      require(state_of(comm) == ncclUnhandledCudaError, "that is");
      expect(ncclCommAbort(comm), "ncclCommAbort");
      require(ncclMemFree(memory) == ncclUnhandledCudaError, "freeing");
      hvd_standin_set("lost_device", nullptr);
      device.drain();
    } else {
      until("the other is through", [] { return hvd_standin_count("aborts", 0) == 1; });
      expect(ncclCommAbort(comm), "ncclCommAbort");
    }
    expect(ncclMemFree(memory), "ncclMemFree");
  });
  CHECK(hvd_standin_violations() == 0);
}

TEST_CASE("standin faults: a device is lost in the launch, in leaving, in an abort, in freeing") {
  const std::string call =
      GENERATE("ncclAllReduce", "ncclCommFinalize", "ncclCommAbort", "ncclMemFree");
  const Settings settings{{"lost_device", ("0:" + call + ":1").c_str()}};
  run_ranks(1, [&](int, Device& device) {
    ncclComm_t comm = make_communicator(unique_id(), 1, 0);
    void* memory = nullptr;
    expect(ncclMemAlloc(&memory, 40), "ncclMemAlloc");
    const ncclResult_t summed = settle(
        comm, ncclAllReduce(memory, memory, 10, ncclFloat32, ncclSum, comm, device.stream()));
    require((summed == ncclUnhandledCudaError) == (call == "ncclAllReduce"), "the sum");
    if (summed == ncclSuccess) device.drain();
    if (call == "ncclCommFinalize")
      require(settle(comm, ncclCommFinalize(comm)) == ncclUnhandledCudaError, "leaving");
    expect(ncclCommAbort(comm), "ncclCommAbort");
    require(ncclMemFree(memory) == ncclUnhandledCudaError, "freeing");
    hvd_standin_set("lost_device", nullptr);
    expect(ncclMemFree(memory), "ncclMemFree");
  });
}

TEST_CASE("standin faults: a call fails the time that it was told to") {
  const Settings settings{{"fail_call", "ncclAllReduce:2:2"}, kAtOnce};
  run_ranks(1, [](int, Device& device) {
    ncclComm_t comm = make_communicator(unique_id(), 1, 0);
    const DeviceArray<float> values(10);
    require(sum(values, comm, device.stream()) == ncclSuccess, "the first");
    require(sum(values, comm, device.stream()) == ncclSystemError, "the second");
    require(std::string(ncclGetLastError(comm)) == "ncclAllReduce fails as it was told to", "text");
    require(state_of(comm) == ncclSystemError, "it is told");
    expect(ncclCommAbort(comm), "ncclCommAbort");
    device.drain();
  });
}

TEST_CASE("standin faults: nothing is there where there is no hub") {
  const Settings settings;
  run_ranks(1, [](int, Device&) {
    ncclUniqueId id = unique_id();
    id.internal[0] = '@';
    id.internal[1] = 'x';
    ncclConfig_t config = non_blocking();
    ncclComm_t comm = nullptr;
    const ncclResult_t result = ncclCommInitRankConfig(&comm, 1, id, 0, &config);
    require(settle(comm, result) == ncclSystemError, "it fails");
    expect(ncclCommAbort(comm), "ncclCommAbort");
  });
}

TEST_CASE("standin faults: who made a later unique id is missed by the ranks that it serves") {
  const Settings settings;
  ncclUniqueId ids[] = {unique_id(), unique_id()};
  ids[1].internal[0] = '@';
  ids[1].internal[1] = 'x';
  std::atomic<bool> failed = false;
  run_ranks(3, [&](int rank, Device&) {
    ncclConfig_t config = non_blocking();
    ncclComm_t comm = nullptr;
    require(ncclCommInitRankScalable(&comm, 3, rank, 4, ids, &config) == ncclInvalidArgument,
            "there are no more of them than ranks");
    require(ncclCommInitRankScalable(&comm, 3, rank, 2, ids, &config) == ncclInProgress,
            "under way");
    if (rank == 2) {
      require(settle(comm, ncclInProgress) == ncclSystemError, "its error");
      failed = true;
    }
    until("it failed", [&] { return failed.load(); });
    until_quiet();
    require(rank == 2 || state_of(comm) == ncclInProgress, "the others wait");
    expect(ncclCommAbort(comm), "ncclCommAbort");
  });
}

TEST_CASE("standin faults: memory of NCCL comes in pieces of the device's room") {
  const Settings settings{{"granularity", "2097152"}};
  run_ranks(1, [](int, Device&) {
    size_t before = 0, after = 0, total = 0;
    void* memory = nullptr;
    expect(cuMemGetInfo(&before, &total), "cuMemGetInfo");
    expect(ncclMemAlloc(&memory, 2097153), "ncclMemAlloc");
    expect(cuMemGetInfo(&after, &total), "cuMemGetInfo");
    require(before - after == 2u * 2097152, "two pieces");
    expect(ncclMemFree(memory), "ncclMemFree");
    expect(cuMemGetInfo(&after, &total), "cuMemGetInfo");
    require(before == after, "all are free again");
  });
}

TEST_CASE("standin faults: memory of NCCL runs out") {
  const Settings settings{{"device_bytes", "1000"}};
  run_ranks(1, [](int, Device&) {
    void* memory = nullptr;
    require(ncclMemAlloc(&memory, 1001) == ncclUnhandledCudaError, "it fails");
    require(std::string(ncclGetLastError(nullptr)) == "Cuda failure 'out of memory'", "text");
  });
}

}  // namespace hvd
