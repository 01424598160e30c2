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

std::atomic<bool> held = false;

void hold(const unsigned*, const unsigned*, void**) {
  comes_about([] { return !held.load(); });
}

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
    for (int k = 0; k < 100; ++k) require(state_of(comm) == ncclInProgress, "still under way");
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
    for (int k = 0; k < 100; ++k) require(state_of(comm) == ncclInProgress, "still under way");
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
  const Settings settings;
  const size_t none = 0;
  hvd_standin_kernel("test_held", 0, &none, hold);
  held = true;
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
    require(!over, "it waits");
    held = false;
    other.join();
    device.drain();
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

TEST_CASE("standin faults: memory of NCCL runs out") {
  const Settings settings{{"device_bytes", "1000"}};
  run_ranks(1, [](int, Device&) {
    void* memory = nullptr;
    require(ncclMemAlloc(&memory, 1001) == ncclUnhandledCudaError, "it fails");
    require(std::string(ncclGetLastError(nullptr)) == "Cuda failure 'out of memory'", "text");
  });
}

}  // namespace hvd
