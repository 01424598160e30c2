// Ranks of the stand-ins as processes: who is killed, what ends a process, what comes from its
// environment.
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "tests/collectives/nccl/standin_processes.h"
#include "tests/collectives/nccl/standin_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/rank_program.h"

namespace hvd {
namespace {

// Unique ids and ranks, through the environment.
std::string text_of(const ncclUniqueId& id) {
  std::string text;
  for (const char byte : id.internal) {
    std::array<char, 3> digits = {};
    std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned char>(byte));
    text += digits.data();
  }
  return text;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

ncclUniqueId id_of_environment() {
  ncclUniqueId id;
  const std::string text = variable("TEST_ID");
  for (size_t k = 0; k < sizeof id.internal; ++k)
    id.internal[k] = static_cast<char>(std::stoi(text.substr(2 * k, 2), nullptr, 16));
  return id;
}

int number(const char* name) { return std::stoi(variable(name)); }

void say(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

int guarded(void (*body)()) {
  try {
    body();
    return 0;
  } catch (const std::exception& error) {
    say(error.what());
    return 1;
  }
}

// Sums on until the other rank is gone.
void sum_on() {
  const int rank = number("TEST_RANK");
  const Device device(number("TEST_DEVICE"));
  ncclComm_t comm = make_communicator(id_of_environment(), 2, rank);
  const DeviceArray<int> values({1}, device.stream());
  ncclResult_t state = ncclSuccess;
  for (int round = 1; state == ncclSuccess; ++round) {
    if (round == 10) say("ten");
    state = settle(comm, ncclAllReduce(values.data(), values.data(), 1, ncclInt32, ncclSum, comm,
                                       device.stream()));
    until("the sum or an error", [&] {
      if (state == ncclSuccess)
        expect(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
      return state != ncclSuccess || cuStreamQuery(device.stream()) == CUDA_SUCCESS;
    });
  }
  say(ncclGetErrorString(state));
  expect(ncclCommAbort(comm), "ncclCommAbort");
  device.drain();
}
const RankProgram sums("sums", [] { return guarded(sum_on); });

const RankProgram uses_after_destroy("uses after destroy", [] {
  return guarded([] {
    const Device device(0);
    ncclComm_t comm = make_communicator(unique_id(), 1, 0);
    finalize_and_destroy(comm);
    ncclCommFinalize(comm);
  });
});

const RankProgram touches_memory("touches memory", [] {
  return guarded([] {
    const Device device(0);
    const DeviceArray<int> values({12345678}, device.stream());
    say("now");
    say(std::to_string(*values.data()));
  });
});

// Registered before the driver is initialised, so heard after it has ended; with TEST_FREES it
// frees then.
const RankProgram outlives_driver("outlives the driver", [] {
  static CUdeviceptr memory = 0;
  static CUcontext context = nullptr;
  std::atexit([] {
    CUstream stream = nullptr;
    const CUresult made = cuStreamCreateWithPriority(&stream, 0, 0), asked = cuStreamQuery(nullptr);
    say(std::to_string(made) + " " + std::to_string(asked));
    if (variable("TEST_FREES") == "cuMemFree") cuMemFree(memory);
    if (variable("TEST_FREES") == "ncclMemFree") ncclMemFree(reinterpret_cast<void*>(memory));
  });
  return guarded([] {
    expect(cuInit(0), "cuInit");
    expect(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    expect(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    expect(cuMemAlloc(&memory, 1), "cuMemAlloc");
  });
});

const RankProgram makes_an_id("makes an id", [] { return guarded([] { unique_id(); }); });

const RankProgram names_devices("names devices", [] {
  return guarded([] {
    const CUresult result = cuInit(0);
    const char* name = nullptr;
    if (result != CUDA_SUCCESS && cuGetErrorName(result, &name) == CUDA_SUCCESS) return say(name);
    int count = 0;
    expect(cuDeviceGetCount(&count), "cuDeviceGetCount");
    for (int k = 0; k < count; ++k) {
      std::array<char, 40> title = {}, pci = {};
      CUuuid uuid;
      expect(cuDeviceGetName(title.data(), title.size(), k), "cuDeviceGetName");
      expect(cuDeviceGetPCIBusId(pci.data(), pci.size(), k), "cuDeviceGetPCIBusId");
      expect(cuDeviceGetUuid(&uuid, k), "cuDeviceGetUuid");
      say(title.data() + std::string(" ") + pci.data() + " " +
          std::to_string(static_cast<int>(uuid.bytes[15])));
    }
  });
});

std::vector<std::string> rank_variables(const ncclUniqueId& id, int rank, int device) {
  return {"TEST_ID=" + text_of(id), "TEST_RANK=" + std::to_string(rank),
          "TEST_DEVICE=" + std::to_string(device), "HVD_STANDIN_DEVICES=2",
          "HVD_STANDIN_PEER_DEATH_ERROR=1"};
}

// What a program says.
std::string text_of_run(const char* program, std::vector<std::string> variables) {
  Process process(program, std::move(variables));
  process.wait();
  return process.text();
}

}  // namespace

TEST_CASE("standin processes: one that is killed is told to the other") {
  const Settings settings{{"peer_death_error", "1"}};  // the hub is here
  const ncclUniqueId id = unique_id();
  Process first("sums", rank_variables(id, 0, 0)), second("sums", rank_variables(id, 1, 1));
  first.wait_for_line("ten");
  second.wait_for_line("ten");
  first.kill();
  CHECK(second.wait() == 0);
  CHECK(second.text() == "ten\nremote process exited or there was a network error\n");
}

TEST_CASE("standin processes: the ranks of a host have a device each, of other hosts any") {
  const Settings settings;
  ncclUniqueId id = unique_id();
  {
    Process first("sums", rank_variables(id, 0, 0)), second("sums", rank_variables(id, 1, 0));
    CHECK(first.wait() != 0);
    CHECK_THAT(first.text(), Catch::Contains("Duplicate GPU detected : rank 0 and rank 1"));
  }
  id = unique_id();
  std::vector<std::string> variables[] = {rank_variables(id, 0, 0), rank_variables(id, 1, 0)};
  for (int rank = 0; rank < 2; ++rank)
    variables[rank].push_back("NCCL_HOSTID=hvd-" + std::to_string(rank));
  Process first("sums", variables[0]), second("sums", variables[1]);
  CHECK_NOTHROW(first.wait_for_line("ten"));
}

TEST_CASE("standin processes: ranks share a device where NCCL, since 2.30.3, is told so") {
  const std::string version = GENERATE("23003", "22902");
  const Settings settings;
  const ncclUniqueId id = unique_id();
  std::vector<std::string> variables[] = {rank_variables(id, 0, 0), rank_variables(id, 1, 0)};
  for (auto& each : variables) {
    each.push_back("NCCL_MULTI_RANK_GPU_ENABLE=1");
    each.push_back("HVD_STANDIN_NCCL_VERSION=" + version);
  }
  Process first("sums", variables[0]), second("sums", variables[1]);
  if (version == "23003") {
    CHECK_NOTHROW(first.wait_for_line("ten"));
  } else {
    CHECK(first.wait() != 0);
    CHECK_THAT(first.text(), Catch::Contains("Duplicate GPU detected"));
  }
}

TEST_CASE("standin processes: a broken rule ends the process") {
  Process process("uses after destroy", {});
  const int status = process.wait();
  CHECK(WIFSIGNALED(status));
  CHECK(process.text() == "stand-in: ncclCommFinalize of rank 0 of 1 after ncclCommDestroy\n");
}

TEST_CASE("standin processes: the host that touches device memory is ended") {
  Process process("touches memory", {});
  CHECK(process.wait() != 0);
  CHECK_THAT(process.text(), Catch::StartsWith("now\n"));
  CHECK_THAT(process.text(), !Catch::Contains("12345678"));
}

TEST_CASE("standin processes: the driver ends with the process, and nothing is freed after that") {
  CHECK(text_of_run("outlives the driver", {}) == "4 4\n");
  for (const std::string call : {"cuMemFree", "ncclMemFree"})
    CHECK(text_of_run("outlives the driver", {"TEST_FREES=" + call}) ==
          "4 4\nstand-in: " + call + " while the process ends, after the driver\n");
}

TEST_CASE("standin processes: NCCL_COMM_ID is not to be set") {
  CHECK(text_of_run("makes an id", {}).empty());
  CHECK(text_of_run("makes an id", {"NCCL_COMM_ID=127.0.0.1:1"}) ==
        "stand-in: NCCL_COMM_ID is set, so that unique ids are taken from an address\n");
}

TEST_CASE("standin processes: devices are those of the settings that are visible") {
  CHECK(text_of_run("names devices", {}) == "NVIDIA Stand-in 0000:10:00.0 0\n");
  const std::string two = "HVD_STANDIN_DEVICES=2", names = "HVD_STANDIN_DEVICE_NAMES=A;B";
  CHECK(text_of_run("names devices", {two, names}) == "A 0000:10:00.0 0\nB 0000:11:00.0 1\n");
  CHECK(text_of_run("names devices", {two, names, "CUDA_VISIBLE_DEVICES=1,0"}) ==
        "B 0000:11:00.0 1\nA 0000:10:00.0 0\n");
  CHECK(text_of_run("names devices", {two, names, "CUDA_VISIBLE_DEVICES=1,7,0"}) ==
        "B 0000:11:00.0 1\n");
  CHECK(
      text_of_run("names devices",
                  {two, names, "CUDA_VISIBLE_DEVICES=GPU-5a000000-0000-0000-0000-000000000001"}) ==
      "B 0000:11:00.0 1\n");
  CHECK(text_of_run("names devices", {two, "CUDA_VISIBLE_DEVICES=1,1"}) ==
        "CUDA_ERROR_NO_DEVICE\n");
  CHECK(text_of_run("names devices", {two, "CUDA_VISIBLE_DEVICES="}) == "CUDA_ERROR_NO_DEVICE\n");
  CHECK(text_of_run("names devices", {"HVD_STANDIN_DEVICES=0"}) == "CUDA_ERROR_NO_DEVICE\n");
  CHECK(text_of_run("names devices", {"HVD_STANDIN_INIT_RESULT=803"}) ==
        "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH\n");
}

}  // namespace hvd
