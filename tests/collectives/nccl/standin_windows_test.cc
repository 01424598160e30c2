// Memory of the stand-in of NCCL: windows, registrations, and when it is freed.
#include <memory>

#include "tests/collectives/nccl/standin_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/until.h"

namespace hvd {
namespace {

constexpr size_t kPage = 4096, kBytes = 4 * kPage;

std::byte* allocate(size_t bytes) {
  void* made = nullptr;
  expect(ncclMemAlloc(&made, bytes), "ncclMemAlloc");
  return static_cast<std::byte*>(made);
}

ncclResult_t register_window(ncclComm_t comm, void* pointer, size_t bytes, ncclWindow_t* made,
                             int flags = NCCL_WIN_COLL_SYMMETRIC) {
  return settle(comm, ncclCommWindowRegister(comm, pointer, bytes, made, flags));
}

ncclResult_t sum(void* values, ncclComm_t comm, CUstream stream) {
  return settle(comm, ncclAllReduce(values, values, 10, ncclFloat32, ncclSum, comm, stream));
}

// Of windows that two ranks register with what `choose` says for each.
struct Window {
  size_t offset = 0, bytes = kPage;
  int flags = NCCL_WIN_COLL_SYMMETRIC;
};
std::string refusal_of(Window first, Window second) {
  const Settings settings{kNoted};
  const ncclUniqueId id = unique_id();
  std::string text;
  run_ranks(2, [&](int rank, Device&) {
    ncclComm_t comm = make_communicator(id, 2, rank);
    const Window own = rank == 0 ? first : second;
    std::byte* memory = allocate(kBytes);
    ncclWindow_t window = nullptr;
    require(register_window(comm, memory + own.offset, own.bytes, &window, own.flags) ==
                ncclInvalidArgument,
            "the window is refused");
    require(window == nullptr, "there is no window");
    if (rank == 0) text = ncclGetLastError(comm);
    // The communicator tells this error from now on: only an abort is left.
    expect(ncclCommAbort(comm), "ncclCommAbort");
    expect(ncclMemFree(memory), "ncclMemFree");
  });
  return hvd_standin_violations() == 2 ? text : "no violation on each rank";
}

}  // namespace

TEST_CASE("standin windows: symmetric memory of all ranks is counted as such") {
  const Settings settings;
  run_communicator(2, [](int, Device& device, ncclComm_t comm) {
    std::byte* memory = allocate(kBytes);
    ncclWindow_t window = nullptr;
    expect(register_window(comm, memory, kBytes, &window), "ncclCommWindowRegister");
    expect(sum(memory + kPage, comm, device.stream()), "ncclAllReduce");
    device.drain();
    expect(ncclCommWindowDeregister(comm, window), "ncclCommWindowDeregister");
    expect(sum(memory + kPage, comm, device.stream()), "ncclAllReduce");
    device.drain();
    expect(ncclMemFree(memory), "ncclMemFree");
  });
  CHECK(hvd_standin_count("collectives", -1) == 4);
  CHECK(hvd_standin_count("symmetric_collectives", -1) == 2);
  CHECK(hvd_standin_used(0) == 0);
}

TEST_CASE("standin windows: without them none is given since 2.29, and that is no error") {
  const Settings settings{{"no_windows", "1"}, {"nccl_version", "22902"}};
  run_communicator(1, [](int, Device&, ncclComm_t comm) {
    std::byte* memory = allocate(kBytes);
    auto window = reinterpret_cast<ncclWindow_t>(memory);
    expect(register_window(comm, memory, kBytes, &window), "ncclCommWindowRegister");
    require(window == nullptr, "there is no window");
    expect(ncclMemFree(memory), "ncclMemFree");
  });
}

TEST_CASE("standin windows: without them 2.28 gives the memory's own registration") {
  const Settings settings{{"no_windows", "1"}};
  run_communicator(1, [](int, Device& device, ncclComm_t comm) {
    std::byte* memory = allocate(kBytes);
    ncclWindow_t window = nullptr;
    void* own = nullptr;
    expect(register_window(comm, memory, kBytes, &window), "ncclCommWindowRegister");
    expect(ncclCommRegister(comm, memory, kBytes, &own), "ncclCommRegister");
    require(own != nullptr && own == static_cast<void*>(window), "they are one");
    expect(ncclCommDeregister(comm, own), "ncclCommDeregister");
    expect(sum(memory, comm, device.stream()), "ncclAllReduce");
    device.drain();
    expect(ncclCommWindowDeregister(comm, window), "ncclCommWindowDeregister");
    expect(ncclMemFree(memory), "ncclMemFree");
  });
  CHECK(hvd_standin_count("registered_collectives", -1) == 1);
  CHECK(hvd_standin_count("symmetric_collectives", -1) == 0);
}

TEST_CASE("standin windows: registering one tells success while it is under way, since 2.28") {
  const bool newer = GENERATE(true, false);
  const Settings settings{{"nccl_version", newer ? "22809" : "22707"}, kNoted};
  run_communicator(1, [&](int, Device&, ncclComm_t comm) {
    std::byte* memory = allocate(kPage);
    ncclWindow_t window = nullptr;
    const ncclResult_t told =
        ncclCommWindowRegister(comm, memory, kPage, &window, NCCL_WIN_COLL_SYMMETRIC);
    require(told == (newer ? ncclSuccess : ncclInProgress), "what it tells");
    void* name = nullptr;
    require(ncclCommRegister(comm, memory, kPage, &name) != ncclSuccess, "it is not over");
    expect(settle(comm, told), "ncclCommWindowRegister");
    expect(ncclCommWindowDeregister(comm, window), "ncclCommWindowDeregister");
    expect(ncclMemFree(memory), "ncclMemFree");
  });
  REQUIRE(hvd_standin_violations() == 1);
  CHECK(std::string(hvd_standin_violation(0)) ==
        "ncclCommRegister of rank 0 of 1 before ncclCommGetAsyncError told that the last call has "
        "ended");
}

TEST_CASE("standin windows: sizes, flags and offsets are the same on all ranks") {
  CHECK(refusal_of({0, kPage}, {0, 2 * kPage}) ==
        "ncclCommWindowRegister with sizes of 4096 and 8192 on ranks 0 and 1");
  CHECK(refusal_of({0, kPage}, {kPage, kPage}) ==
        "ncclCommWindowRegister with offsets of 0 and 4096 on ranks 0 and 1");
  CHECK(refusal_of({0, kPage}, {0, kPage, 0}) ==
        "ncclCommWindowRegister with flags of 1 and 0 on ranks 0 and 1");
}

TEST_CASE("standin windows: are pages of memory of ncclMemAlloc") {
  const Settings settings{kNoted};
  run_communicator(1, [](int, Device&, ncclComm_t comm) {
    std::byte* memory = allocate(kBytes);
    const DeviceArray<std::byte> other(kBytes);
    ncclWindow_t window = nullptr;
    require(register_window(comm, memory + 1, kPage, &window) == ncclInvalidArgument, "alignment");
    require(register_window(comm, memory, kBytes + 1, &window) == ncclInvalidArgument, "its end");
    require(register_window(comm, other.data(), kPage, &window) == ncclInvalidArgument, "its kind");
    expect(ncclMemFree(memory), "ncclMemFree");
  });
}

// Ranks that register two windows in different orders use different ones in a collective.
TEST_CASE("standin windows: all ranks register in the same order") {
  const Settings settings{kNoted};
  run_communicator(2, [](int rank, Device& device, ncclComm_t comm) {
    std::byte* memory[] = {allocate(kPage), allocate(kPage)};
    ncclWindow_t windows[2] = {};
    for (int k = 0; k < 2; ++k)
      expect(register_window(comm, memory[(k + rank) % 2], kPage, &windows[k]), "register");
    expect(sum(memory[0], comm, device.stream()), "ncclAllReduce");
    device.drain();
    for (ncclWindow_t window : windows)
      expect(ncclCommWindowDeregister(comm, window), "deregister");
    for (std::byte* each : memory) expect(ncclMemFree(each), "ncclMemFree");
  });
  REQUIRE(hvd_standin_violations() == 2);  // one for each rank
  CHECK(std::string(hvd_standin_violation(0)) ==
        "a collective with buffers that are registered, or lie in a window, otherwise on rank 0 "
        "than on rank 1");
}

TEST_CASE("standin windows: an allgather in place lies in them as it should") {
  const Settings settings;
  run_communicator(2, [](int rank, Device& device, ncclComm_t comm) {
    std::byte* memory = allocate(kBytes);
    ncclWindow_t window = nullptr;
    expect(register_window(comm, memory, kBytes, &window), "ncclCommWindowRegister");
    expect(settle(comm, ncclAllGather(memory + 40 * rank, memory, 10, ncclFloat32, comm,
                                      device.stream())),
           "ncclAllGather");
    device.drain();
    expect(ncclCommWindowDeregister(comm, window), "ncclCommWindowDeregister");
    expect(ncclMemFree(memory), "ncclMemFree");
  });
  CHECK(hvd_standin_count("symmetric_collectives", -1) == 2);
}

TEST_CASE("standin windows: registered memory on one rank and other memory on another") {
  const Settings settings{kNoted};
  run_communicator(2, [](int rank, Device& device, ncclComm_t comm) {
    std::byte* memory = allocate(kPage);
    void* name = nullptr;
    if (rank == 0) expect(ncclCommRegister(comm, memory, kPage, &name), "ncclCommRegister");
    expect(sum(memory, comm, device.stream()), "ncclAllReduce");
    device.drain();
    if (rank == 0) expect(ncclCommDeregister(comm, name), "ncclCommDeregister");
    expect(ncclMemFree(memory), "ncclMemFree");
  });
  CHECK(hvd_standin_violations() == 2);
}

TEST_CASE("standin windows: memory that is not registered by itself is told by that call alone") {
  const Settings settings{{"registration_fails", "1"}, {"fault_rank", "1"}};
  run_communicator(2, [](int rank, Device& device, ncclComm_t comm) {
    std::byte* memory = allocate(kPage);
    void* name = nullptr;
    const ncclResult_t result = ncclCommRegister(comm, memory, kPage, &name);
    require(result == (rank == 1 ? ncclSystemError : ncclSuccess), "it fails on one");
    if (rank == 0) expect(ncclCommDeregister(comm, name), "ncclCommDeregister");
    expect(sum(memory, comm, device.stream()), "ncclAllReduce");
    device.drain();
    expect(ncclMemFree(memory), "ncclMemFree");
  });
}

TEST_CASE("standin windows: nothing is deregistered under a collective") {
  const bool window = GENERATE(true, false);
  const Settings settings{kNoted, {"nccl_version", "22907"}};
  const ncclUniqueId id = unique_id();
  run_ranks(2, [&](int rank, Device& device) {
    ncclComm_t comm = make_communicator(id, 2, rank);
    std::byte* memory = allocate(kPage);
    ncclWindow_t symmetric = nullptr;
    void* name = nullptr;
    if (window) expect(register_window(comm, memory, kPage, &symmetric), "register");
    if (!window) expect(ncclCommRegister(comm, memory, kPage, &name), "register");
    const auto deregister = [&] {
      return window ? ncclCommWindowDeregister(comm, symmetric) : ncclCommDeregister(comm, name);
    };
    if (rank == 0) {  // the other calls none before
      expect(sum(memory + 8, comm, device.stream()), "ncclAllReduce");
      require(deregister() == ncclInvalidArgument, "it is refused");
    }
    until("it was", [] { return hvd_standin_violations() == 1; });
    if (rank == 1) expect(sum(memory + 8, comm, device.stream()), "ncclAllReduce");
    device.drain();
    expect(deregister(), "deregister");
    finalize_and_destroy(comm);
    expect(ncclMemFree(memory), "ncclMemFree");
  });
  CHECK(std::string(hvd_standin_violation(0)) ==
        (window ? "ncclCommWindowDeregister" : "ncclCommDeregister") +
            std::string(" of memory that a collective under way touches"));
}

TEST_CASE("standin windows: where nothing is registered by itself a null handle tells success") {
  const Settings settings{{"registers_nothing", "1"}};
  run_communicator(1, [](int, Device&, ncclComm_t comm) {
    std::byte* memory = allocate(kPage);
    void* name = memory;
    expect(ncclCommRegister(comm, memory, kPage, &name), "ncclCommRegister");
    require(name == nullptr, "there is none");
    expect(ncclCommDeregister(comm, name), "ncclCommDeregister");
    expect(ncclMemFree(memory), "ncclMemFree");
  });
}

TEST_CASE("standin windows: deregister, then destroy, then free") {
  const Settings settings{kNoted};
  run_ranks(1, [](int, Device&) {
    ncclComm_t comm = make_communicator(unique_id(), 1, 0);
    std::byte* memory = allocate(kPage);
    void* name = nullptr;
    expect(ncclCommRegister(comm, memory, kPage, &name), "ncclCommRegister");
    require(ncclMemFree(memory) == ncclInvalidArgument, "it is not freed");
    finalize_and_destroy(comm);
  });
  REQUIRE(hvd_standin_violations() == 2);
  CHECK(std::string(hvd_standin_violation(0)) ==
        "ncclMemFree of memory that a communicator has registered");
  CHECK(std::string(hvd_standin_violation(1)) ==
        "ncclCommDestroy of a communicator with 1 windows or registrations");
}

TEST_CASE("standin windows: what is not registered is not deregistered") {
  const Settings settings{kNoted};
  run_ranks(1, [](int, Device&) {
    ncclComm_t comm = make_communicator(unique_id(), 1, 0);
    std::byte* memory = allocate(kPage);
    require(ncclCommDeregister(comm, memory) == ncclInvalidUsage, "there is none");
    expect(ncclCommAbort(comm), "ncclCommAbort");
    comm = make_communicator(unique_id(), 1, 0);
    require(
        ncclCommWindowDeregister(comm, reinterpret_cast<ncclWindow_t>(memory)) == ncclInternalError,
        "there is no window");
    expect(ncclCommAbort(comm), "ncclCommAbort");
    expect(ncclMemFree(memory), "ncclMemFree");
  });
  REQUIRE(hvd_standin_violations() == 2);
  CHECK(std::string(hvd_standin_violation(0)) ==
        "ncclCommDeregister of what the communicator has not registered");
  CHECK(std::string(hvd_standin_violation(1)) ==
        "ncclCommWindowDeregister of what is no window of the communicator");
}

TEST_CASE("standin windows: no abort ends a sum in them before 2.29.7") {
  const bool newer = GENERATE(true, false);
  const Settings settings{{"nccl_version", newer ? "22907" : "22903"}, kNoted};
  const ncclUniqueId id = unique_id();
  run_ranks(2, [&](int rank, Device& device) {
    ncclComm_t comm = make_communicator(id, 2, rank);
    std::byte* memory = allocate(kPage);
    ncclWindow_t window = nullptr;
    expect(register_window(comm, memory, kPage, &window), "ncclCommWindowRegister");
    if (rank == 0) expect(sum(memory, comm, device.stream()), "ncclAllReduce");
    until("it waits",
          [] { return hvd_standin_waiting(0) == 1 || hvd_standin_count("aborts", 0) > 0; });
    expect(ncclCommAbort(comm), "ncclCommAbort");
    device.drain();
    expect(ncclMemFree(memory), "ncclMemFree");
  });
  REQUIRE(hvd_standin_violations() == (newer ? 0 : 1));
  if (!newer)
    CHECK(std::string(hvd_standin_violation(0)) ==
          "a sum in windows that no abort ends, of NCCL older than 2.29.7");
}

TEST_CASE("standin windows: memory is not freed under work, nor twice") {
  const Settings settings{kNoted};
  const ncclUniqueId id = unique_id();
  run_ranks(2, [&](int rank, Device& device) {
    ncclComm_t comm = make_communicator(id, 2, rank);
    std::byte* memory = allocate(kPage);
    if (rank == 0) {  // and so for ever under way
      expect(sum(memory, comm, device.stream()), "ncclAllReduce");
      require(ncclMemFree(memory) == ncclInvalidArgument, "it is not freed");
    }
    expect(ncclCommAbort(comm), "ncclCommAbort");
    device.drain();
    expect(ncclMemFree(memory), "ncclMemFree");
    if (rank == 0) require(ncclMemFree(memory) == ncclInvalidArgument, "it is not freed again");
  });
  REQUIRE(hvd_standin_violations() == 2);
  CHECK(std::string(hvd_standin_violation(0)) ==
        "ncclMemFree of memory that work under way is to touch");
  CHECK(std::string(hvd_standin_violation(1)) ==
        "ncclMemFree of what ncclMemAlloc did not give, or was freed before");
}

}  // namespace hvd
