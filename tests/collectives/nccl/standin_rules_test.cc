// That the stand-in of NCCL sees each broken rule of NCCL's. The rules' sources are beside them in
// tests/collectives/nccl/standin/.
#include <memory>

#include "tests/collectives/nccl/standin_ranks.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

std::string only_violation() {
  return hvd_standin_violations() == 1
             ? hvd_standin_violation(0)
             : std::to_string(hvd_standin_violations()) +
                   " violations: " + hvd_standin_violation(0) + "; " + hvd_standin_violation(1);
}

ncclResult_t sum(const DeviceArray<float>& values, size_t count, ncclComm_t comm, CUstream stream) {
  return ncclAllReduce(values.data(), values.data(), count, ncclFloat32, ncclSum, comm, stream);
}

// Two ranks whose first collectives differ: they hang, until they are aborted.
std::string hang_of(const std::function<ncclResult_t(int rank, float* values, ncclComm_t comm,
                                                     CUstream stream)>& call) {
  const Settings settings{kNoted, kAtOnce};
  const ncclUniqueId id = unique_id();
  const int before = hvd_standin_mismatches();
  std::atomic<int> hung = 0;
  run_ranks(2, [&](int rank, Device& device) {
    ncclComm_t comm = make_communicator(id, 2, rank);
    const DeviceArray<float> values(100);
    expect(settle(comm, call(rank, values.data(), comm, device.stream())), "the collective");
    until("the calls were compared", [&] { return hvd_standin_mismatches() > before; });
    until_quiet();
    if (cuStreamQuery(device.stream()) == CUDA_ERROR_NOT_READY) ++hung;
    expect(ncclCommAbort(comm), "ncclCommAbort");
    device.drain();
  });
  return hung == 2 ? hvd_standin_mismatch(before) : "it did not hang";
}

}  // namespace

TEST_CASE("standin rules: ranks whose counts, types, operations or roots differ hang") {
  CHECK(hang_of([](int rank, float* values, ncclComm_t comm, CUstream stream) {
          return ncclAllReduce(values, values, rank == 0 ? 10 : 11, ncclFloat32, ncclSum, comm,
                               stream);
        }) ==
        "rank 0 calls allreduce of 10 of type 7 with op 0 and root 0, rank 1 calls allreduce of 11 "
        "of type 7 with op 0 and root 0");
  CHECK_THAT(hang_of([](int rank, float* values, ncclComm_t comm, CUstream stream) {
               return ncclAllReduce(values, values, 10, rank == 0 ? ncclFloat32 : ncclInt32,
                                    ncclSum, comm, stream);
             }),
             Catch::Contains("rank 1 calls allreduce of 10 of type 2"));
  CHECK_THAT(hang_of([](int rank, float* values, ncclComm_t comm, CUstream stream) {
               return ncclAllReduce(values, values, 10, ncclFloat32, rank == 0 ? ncclSum : ncclMax,
                                    comm, stream);
             }),
             Catch::Contains("with op 2"));
  CHECK_THAT(hang_of([](int rank, float* values, ncclComm_t comm, CUstream stream) {
               return ncclBroadcast(values, values, 10, ncclFloat32, rank, comm, stream);
             }),
             Catch::Contains("and root 1"));
  CHECK_THAT(hang_of([](int rank, float* values, ncclComm_t comm, CUstream stream) {
               if (rank == 0) return ncclAllGather(values, values, 10, ncclFloat32, comm, stream);
               return ncclBroadcast(values, values, 10, ncclFloat32, 0, comm, stream);
             }),
             Catch::StartsWith("rank 0 calls allgather"));
}

// Each rank's first collective has the only slot when it launches the second.
TEST_CASE("standin rules: two communicators in opposite orders on one device deadlock") {
  const Settings settings{kNoted, kAtOnce};
  const ncclUniqueId ids[] = {unique_id(), unique_id()};
  std::atomic<int> waiting = 0, stuck = 0;
  run_ranks(2, [&](int rank, Device& device) {
    ncclComm_t comms[] = {make_communicator(ids[0], 2, rank), make_communicator(ids[1], 2, rank)};
    const Device other(rank);
    const DeviceArray<float> values(10), more(10);
    expect(sum(values, 10, comms[rank], device.stream()), "the first");
    until("it has the slot", [&] { return hvd_standin_waiting(rank) == 1; });
    ++waiting;
    until("both have", [&] { return waiting >= 2; });
    expect(sum(more, 10, comms[1 - rank], other.stream()), "the second");
    ++waiting;
    until("both wait for another", [&] { return waiting == 4; });
    until_quiet();
    if (cuStreamQuery(device.stream()) == CUDA_ERROR_NOT_READY &&
        cuStreamQuery(other.stream()) == CUDA_ERROR_NOT_READY && hvd_standin_waiting(rank) == 1)
      ++stuck;
    until("both have looked", [&] { return stuck == 2; });
    for (ncclComm_t comm : comms) expect(ncclCommAbort(comm), "ncclCommAbort");
    device.drain();
    Device::drain(other.stream());
  });
  CHECK(stuck == 2);
  CHECK(hvd_standin_violations() == 0);
}

TEST_CASE("standin rules: two communicators in opposite orders end where there are two slots") {
  const Settings settings{kNoted, kAtOnce, {"slots", "2"}};
  const ncclUniqueId ids[] = {unique_id(), unique_id()};
  run_ranks(2, [&](int rank, Device& device) {
    ncclComm_t comms[] = {make_communicator(ids[0], 2, rank), make_communicator(ids[1], 2, rank)};
    const Device other(rank);
    const DeviceArray<float> values(10), more(10);
    expect(sum(values, 10, comms[rank], device.stream()), "the first");
    expect(sum(more, 10, comms[1 - rank], other.stream()), "the second");
    device.drain();
    Device::drain(other.stream());
    for (ncclComm_t comm : comms) finalize_and_destroy(comm);
  });
  CHECK(hvd_standin_violations() == 0);
}

TEST_CASE("standin rules: with an implicit order launches of two streams begin in turn") {
  const Settings settings{kNoted, kAtOnce, {"launch_order_implicit", "1"}};
  const ncclUniqueId ids[] = {unique_id(), unique_id()};
  run_ranks(2, [&](int rank, Device& device) {
    ncclComm_t comms[] = {make_communicator(ids[0], 2, rank), make_communicator(ids[1], 2, rank)};
    const Device other(rank);
    const DeviceArray<float> values(10), more(10);
    for (int round = 0; round < 20; ++round) {
      expect(sum(values, 10, comms[0], device.stream()), "the first");
      expect(sum(more, 10, comms[1], other.stream()), "the second");
    }
    device.drain();
    Device::drain(other.stream());
    for (ncclComm_t comm : comms) finalize_and_destroy(comm);
  });
  CHECK(hvd_standin_violations() == 0);
}

TEST_CASE("standin rules: no call before the last one is settled") {
  const Settings settings{kNoted, {"in_progress_percent", "100"}};
  run_communicator(1, [](int, Device& device, ncclComm_t comm) {
    const DeviceArray<float> values(10);
    const ncclResult_t first = sum(values, 10, comm, device.stream());
    if (first != ncclInProgress) throw std::runtime_error("it was not in progress");
    if (sum(values, 10, comm, device.stream()) != ncclInvalidArgument)
      throw std::runtime_error("it was not refused");
    expect(settle(comm, first), "ncclAllReduce");
    device.drain();
  });
  CHECK(only_violation() ==
        "ncclAllReduce of rank 0 of 1 before ncclCommGetAsyncError told that the last call has "
        "ended");
}

TEST_CASE("standin rules: no call beside another thread's") {
  const Settings settings{kNoted, kAtOnce};
  const ncclUniqueId id = unique_id();
  run_ranks(2, [&](int rank, Device&) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = nullptr;
    expect(ncclCommInitRankConfig(&comm, 2, id, rank, &config), "ncclCommInitRankConfig");
    const auto seen = [] { return hvd_standin_violations() > 0; };
    if (rank == 1) until("a call beside it was seen", seen);  // the other waits in its call
    std::jthread beside;
    if (rank == 0)
      beside = std::jthread([comm, seen] {
        ncclResult_t state = ncclSuccess;
        while (!seen()) ncclCommGetAsyncError(comm, &state);
      });
    // Whichever comes second is refused.
    until("it was finalized", [&] { return ncclCommFinalize(comm) == ncclSuccess; });
    if (rank == 0) beside.join();
    expect(ncclCommDestroy(comm), "ncclCommDestroy");
  });
  CHECK_THAT(hvd_standin_violation(0), Catch::Contains(" beside a call of another thread"));
}

TEST_CASE("standin rules: no abort beside another thread's call") {
  const Settings settings{kNoted};
  const ncclUniqueId id = unique_id();
  run_ranks(2, [&](int rank, Device&) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = nullptr;
    expect(ncclCommInitRankConfig(&comm, 2, id, rank, &config), "ncclCommInitRankConfig");
    CUcontext context = nullptr;
    expect(cuCtxGetCurrent(&context), "cuCtxGetCurrent");
    std::jthread beside;
    if (rank == 0)
      beside = std::jthread([comm, context] {
        cuCtxSetCurrent(context);
        until("the call", [] { return hvd_standin_count("host_waits", 0) == 1; });
        ncclCommAbort(comm);
      });
    // The other waits in this call until then.
    if (rank == 1) until("it was seen", [] { return hvd_standin_violations() == 1; });
    expect(ncclCommDestroy(comm), "ncclCommDestroy");
  });
  CHECK(only_violation() == "ncclCommAbort beside a call of another thread");
}

TEST_CASE("standin rules: of a group with a call that failed nothing is done") {
  const Settings settings{kNoted, kAtOnce};
  run_ranks(1, [](int, Device& device) {
    ncclComm_t comm = make_communicator(unique_id(), 1, 0);
    ncclComm_t other = make_communicator(unique_id(), 1, 0);
    const DeviceArray<float> values(10);
    expect(ncclGroupStart(), "ncclGroupStart");
    expect(sum(values, 10, comm, device.stream()), "ncclAllReduce");
    require(sum(values, 11, other, device.stream()) == ncclInvalidArgument, "it is refused");
    expect(ncclGroupStart(), "ncclGroupStart");
    expect(ncclGroupEnd(), "the end of one in it");
    require(ncclGroupEnd() == ncclInvalidArgument, "the end tells it");
    ncclResult_t state = ncclSuccess;
    for (ncclComm_t each : {comm, other}) {
      expect(ncclCommGetAsyncError(each, &state), "ncclCommGetAsyncError");
      require(state == ncclInvalidArgument, "both do");
      expect(ncclCommAbort(each), "ncclCommAbort");
    }
    expect(ncclGroupStart(), "ncclGroupStart");
    expect(ncclGroupEnd(), "the next one's end");
    require(ncclGroupEnd() == ncclInvalidUsage, "there is none");
  });
  CHECK(hvd_standin_count("collectives", -1) == 0);
}

TEST_CASE("standin rules: a collective's arguments are checked, and those of the others") {
  const Settings settings{kNoted, kAtOnce};
  run_ranks(1, [](int, Device& device) {
    const DeviceArray<float> values(10);
    const Device elsewhere(1), back(0);
    float* at = values.data();
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER, none = {};
    ncclComm_t comm = nullptr;
    require(ncclCommInitRankConfig(&comm, 1, unique_id(), 1, &config) == ncclInvalidArgument,
            "a rank that is none");
    require(ncclCommInitRankConfig(&comm, 1, unique_id(), 0, &none) == ncclInvalidArgument,
            "a configuration that was not begun");
    expect(ncclCommInitRankConfig(&comm, 1, unique_id(), 0, &config), "ncclCommInitRankConfig");
    const auto refused = [](ncclResult_t told, ncclResult_t wanted, const char* what) {
      require(told == wanted, what);
    };
    const ncclDataType_t wrong_type = ncclNumTypes;
    const auto wrong_op = static_cast<ncclRedOp_t>(77);
    void* made = nullptr;
    ncclRedOp_t op = ncclSum;
    ncclWindow_t window = nullptr;
    ncclComm_t child = nullptr;
    const CUstream stream = device.stream();
    refused(ncclAllReduce(at, at, 1, wrong_type, ncclSum, comm, stream), ncclInvalidArgument,
            "a type");
    refused(ncclAllReduce(at, at, 1, ncclFloat32, wrong_op, comm, stream), ncclInvalidArgument,
            "an operation");
    refused(ncclBroadcast(at, at, 1, ncclFloat32, 1, comm, stream), ncclInvalidArgument, "a root");
    refused(ncclAllReduce(at, at, 1, ncclFloat32, ncclSum, comm, elsewhere.stream()),
            ncclUnhandledCudaError, "another device's stream");
    refused(ncclAllReduce(at, at, 1, ncclFloat32, ncclSum, nullptr, stream), ncclInvalidArgument,
            "no communicator");
    refused(ncclRedOpCreatePreMulSum(&op, nullptr, ncclFloat32, ncclScalarHostImmediate, comm),
            ncclInvalidArgument, "no scalar");
    refused(ncclRedOpDestroy(ncclSum, comm), ncclInvalidArgument, "NCCL's own operation");
    refused(ncclCommSplit(comm, -7, 0, &child, nullptr), ncclInvalidArgument, "a color");
    refused(ncclCommWindowRegister(comm, at, 0, &window, 0), ncclInvalidArgument, "no bytes");
    refused(ncclCommRegister(comm, &config, 8, &made), ncclInvalidArgument, "the host's memory");
    refused(ncclMemAlloc(&made, 0), ncclInvalidArgument, "memory of no bytes");
    expect(ncclCommDestroy(comm), "ncclCommDestroy");
    CUcontext own = nullptr;
    expect(cuCtxGetCurrent(&own), "cuCtxGetCurrent");
    expect(cuCtxSetCurrent(nullptr), "cuCtxSetCurrent");
    refused(ncclCommInitRankConfig(&comm, 1, unique_id(), 0, &config), ncclUnhandledCudaError,
            "no current device");
    expect(cuCtxSetCurrent(own), "cuCtxSetCurrent");
  });
  CHECK(hvd_standin_violations() == 0);
}

TEST_CASE("standin rules: a communicator that was never made is none") {
  const Settings settings{kNoted};
  int nothing = 0;
  auto* comm = reinterpret_cast<ncclComm_t>(&nothing);
  const Device device(0);
  CHECK(ncclCommFinalize(comm) == ncclInvalidArgument);
  CHECK(ncclCommAbort(comm) == ncclInvalidArgument);
  REQUIRE(hvd_standin_violations() == 2);
  CHECK(std::string(hvd_standin_violation(0)) ==
        "ncclCommFinalize of a communicator that was never made");
}

TEST_CASE("standin rules: no use after an abort or a destroy") {
  const Settings settings{kNoted, kAtOnce};
  run_ranks(1, [](int, Device& device) {
    ncclComm_t comm = make_communicator(unique_id(), 1, 0);
    const DeviceArray<float> values(10);
    finalize_and_destroy(comm);
    sum(values, 10, comm, device.stream());
    comm = make_communicator(unique_id(), 1, 0);
    expect(ncclCommAbort(comm), "ncclCommAbort");
    ncclResult_t state = ncclSuccess;
    ncclCommGetAsyncError(comm, &state);
    ncclCommAbort(comm);
  });
  REQUIRE(hvd_standin_violations() == 3);
  CHECK_THAT(hvd_standin_violation(0),
             Catch::Equals("ncclAllReduce of rank 0 of 1 after ncclCommDestroy"));
  CHECK_THAT(hvd_standin_violation(1),
             Catch::StartsWith("ncclCommGetAsyncError of rank 0 of 1 after ncclCommAbort"));
  CHECK_THAT(hvd_standin_violation(2), Catch::StartsWith("ncclCommAbort of a communicator"));
}

TEST_CASE("standin rules: no split with collectives under way") {
  const Settings settings{kNoted, kAtOnce};
  const ncclUniqueId id = unique_id();
  run_ranks(2, [&](int rank, Device& device) {
    ncclComm_t comm = make_communicator(id, 2, rank), child = nullptr;
    const DeviceArray<float> values(10);
    if (rank == 0) {
      expect(sum(values, 10, comm, device.stream()), "ncclAllReduce");
      ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &child, nullptr);
    }
    until("it was split", [] { return hvd_standin_violations() > 0; });
    expect(ncclCommAbort(comm), "ncclCommAbort");
    device.drain();
  });
  CHECK(only_violation() == "ncclCommSplit of a communicator with collectives under way");
}

TEST_CASE("standin rules: the ranks of a communicator have a device each") {
  const Settings settings{kNoted, kAtOnce};
  const ncclUniqueId id = unique_id();
  run_ranks(2, [&](int rank, Device&) {
    const Device shared(0);
    ncclConfig_t config = non_blocking();
    ncclComm_t comm = nullptr;
    const ncclResult_t result = ncclCommInitRankConfig(&comm, 2, id, rank, &config);
    if (settle(comm, result) != ncclInvalidUsage) throw std::runtime_error("it was not refused");
    if (std::string(ncclGetLastError(comm)).find("Duplicate GPU detected : rank 0 and rank 1") != 0)
      throw std::runtime_error(ncclGetLastError(comm));
    expect(ncclCommAbort(comm), "ncclCommAbort");
  });
  CHECK(hvd_standin_violations() == 0);
}

TEST_CASE("standin rules: a rank that is there already, or means other ranks, waits for ever") {
  const bool twice = GENERATE(true, false);
  const Settings settings{kNoted};
  const ncclUniqueId ids[] = {unique_id(), unique_id(), unique_id()};
  const int callers = twice ? 3 : 2;  // ranks 0, 1 and 0
  const int wanted = twice ? 1 : 2;   // of which so many wait
  std::atomic<int> in_progress = 0, looked = 0, all_connected = 0;
  run_ranks(callers, [&](int caller, Device&) {
    ncclUniqueId given[] = {ids[0], ids[1 + caller % 2]};
    ncclConfig_t config = non_blocking();
    ncclComm_t comm = nullptr;
    if (twice && caller == 1) {  // once both others wait for it
      until("they are", [] { return hvd_standin_count("communicators", -1) == 2; });
      until_quiet();
    }
    const int count = twice ? 1 : 2;  // of one root's ranks but one is there
    const ncclResult_t told = ncclCommInitRankScalable(&comm, 2, caller % 2, count, given, &config);
    require(told == ncclInProgress, "under way");
    until("all are", [&] { return hvd_standin_count("communicators", -1) == callers; });
    const auto waits = [comm] {
      ncclResult_t state = ncclSuccess;
      expect(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
      return state == ncclInProgress;
    };
    bool connected = false;
    until("those that can have connected", [&] {
      if (!connected && !waits()) connected = ++all_connected > 0;
      return all_connected == callers - wanted;
    });
    until_quiet();
    in_progress += waits() ? 1 : 0;
    ++looked;
    until("all have looked", [&] { return looked == callers; });
    expect(ncclCommAbort(comm), "ncclCommAbort");
  });
  CHECK(in_progress == wanted);
}

TEST_CASE("standin rules: blocking and non-blocking communicators are not grouped together") {
  const Settings settings{kNoted, kAtOnce};
  run_ranks(1, [](int, Device& device) {
    ncclComm_t comm = make_communicator(unique_id(), 1, 0), blocking = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    expect(ncclCommInitRankConfig(&blocking, 1, unique_id(), 0, &config), "ncclCommInitRank");
    const DeviceArray<float> values(10);
    expect(ncclGroupStart(), "ncclGroupStart");
    expect(sum(values, 10, comm, device.stream()), "ncclAllReduce");
    expect(sum(values, 10, blocking, device.stream()), "ncclAllReduce");
    if (ncclGroupEnd() != ncclInvalidArgument) throw std::runtime_error("it was not refused");
    finalize_and_destroy(comm);
    finalize_and_destroy(blocking);
  });
}

TEST_CASE("standin rules: a collective's memory is that of the communicator's device") {
  const Settings settings{kNoted, kAtOnce};
  run_ranks(1, [](int, Device& device) {
    ncclComm_t comm = make_communicator(unique_id(), 1, 0);
    float value = 0;
    require(ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, device.stream()) ==
                ncclInvalidArgument,
            "the host's memory is refused");
    ncclResult_t state = ncclSuccess;
    expect(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
    require(state == ncclInvalidArgument, "an abort is all that is left");
    expect(ncclCommAbort(comm), "ncclCommAbort");
  });
}

TEST_CASE("standin rules: an abort goes back to the device that is current, so there is one") {
  const Settings settings{kNoted};
  run_ranks(1, [](int, Device&) {
    ncclComm_t comm = make_communicator(unique_id(), 1, 0);
    CUcontext own = nullptr;
    expect(cuCtxGetCurrent(&own), "cuCtxGetCurrent");
    expect(cuCtxSetCurrent(nullptr), "cuCtxSetCurrent");
    require(ncclCommAbort(comm) == ncclInvalidArgument, "it is refused");
    expect(cuCtxSetCurrent(own), "cuCtxSetCurrent");
    expect(ncclCommAbort(comm), "ncclCommAbort");
  });
  CHECK(only_violation() ==
        "ncclCommAbort by a thread without a current device, which makes a context on GPU 0");
}

}  // namespace hvd
