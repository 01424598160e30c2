// What is said of an abort that takes too long, at each of its steps.
#include "collectives/nccl/nccl_aborter.h"

#include <sys/wait.h>

#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/collectives/nccl/engine_devices.h"
#include "tests/collectives/nccl/replaced_nccl.h"
#include "tests/collectives/nccl/standin.h"
#include "tests/collectives/nccl/standin_processes.h"
#include "tests/support/catch.h"
#include "tests/support/rank_program.h"
#include "tests/support/until.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

std::atomic<bool> in_abort{false}, ends_abort{false};

// Nothing of NCCL is there but an abort that ends when the test says so.
NcclLibrary nccl_with_a_slow_abort() {
  in_abort = ends_abort = false;
  NcclLibrary nccl;
  nccl.ncclCommAbort = [](ncclComm_t) {
    in_abort = true;
    comes_about([] { return ends_abort.load(); });
    return ncclSuccess;
  };
  return nccl;
}

ncclComm_t some_communicator() {
  static int place = 0;
  return reinterpret_cast<ncclComm_t>(&place);
}

std::string word_of(NcclAborter& aborter) {
  std::string why;
  until("there is a word", [&] { return !(why = aborter.overdue()).empty(); });
  return why;
}

constexpr NcclLimits kLimits{.abort = 100ms, .program = 60s};

// Alone; NCCL does not come back from destroying its communicator.
int stay_in_leaving() {
  ReplacedNccl device(0,
                      [](NcclLibrary& nccl) {
                        nccl.ncclCommDestroy = [](ncclComm_t) {
                          comes_about([] { return false; });
                          return ncclSuccess;
                        };
                      },
                      {.leave = 100ms, .abort = 100ms});
  run_engines(1, [&](int number, Engine& engine) {
    engine.use_device(device);
    ProgramStream stream(number);
    DeviceTensor tensor(number, stream, 1000, 1);
    tensor.sum_async(engine, "x")->wait();
    tensor.values();
    engine.shutdown();
  });
  return 0;
}

const RankProgram in_leaving("does not come out of leaving", stay_in_leaving);

// Two ranks of a sum, behind which a kernel of ours is held on rank 1's GPU, when one breaks the
// epoch.
int end_before_a_kernel_of_ours() {
  const std::array backends{make_standin_backend(0, {.abort = 60s}),
                            make_standin_backend(1, {.abort = 200ms})};
  run_engines(2, [&](int number, Engine& engine) {
    engine.use_device(*backends[static_cast<size_t>(number)]);
    ProgramStream stream(number);
    DeviceTensor tensor(number, stream, 1000, 1);
    tensor.sum_async(engine, "x")->wait();
    stream.drain();
    hvd_standin_set("held_kernel", "hvd_scale_float32");
    const auto work = tensor.allreduce_async(engine, "y", {ReduceOp::kProduct, 1, 3});
    work->wait();
    until("both have it", [] { return hvd_standin_count("kernel hvd_scale_float32", -1) == 2; });
    if (number == 1) engine.abort("the test ends it");
    until("an end", [&] { return work->done(); });
  });
  return 0;
}

const RankProgram before_a_kernel_of_ours("ends before a kernel of ours",
                                          end_before_a_kernel_of_ours);

}  // namespace

TEST_CASE("nccl aborter: NCCL's step and then the device's have a word each, and an end has none") {
  const NcclLibrary nccl = nccl_with_a_slow_abort();
  CudaDevice& device = standin_device(0);
  NcclAborter aborter(nccl, device, kLimits);
  CHECK(!aborter.is_waited_for());
  Hold hold;
  hold.launch(0, device.stream());
  aborter.begin(std::vector<CUevent>{});
  std::jthread thread([&] { aborter.run({some_communicator()}); });
  CHECK(word_of(aborter) == "NCCL did not end its abort within 100 ms");
  ends_abort = true;
  until("the device's step", [&] {
    return aborter.overdue() ==
           "NCCL was aborted, but its GPU did not come to an end of it within 100 ms";
  });
  CHECK(aborter.is_waited_for());
  hold.let_go();
  thread.join();
  CHECK(aborter.overdue().empty());
  CHECK(!aborter.is_waited_for());
}

// The program's own work on it never ends, then: NCCL has its time from now on.
TEST_CASE("nccl aborter: a lost device holds up neither the limit nor the end") {
  const NcclLibrary nccl = nccl_with_a_slow_abort();
  CudaDevice& device = standin_device(1);
  const CudaDevice::Event event = device.take_event();
  ProgramStream stream(1);
  Hold hold;
  hold.launch(1, stream.get());
  device.record(event.get(), stream.get());
  NcclAborter aborter(nccl, device, kLimits);
  aborter.begin(std::vector<CUevent>{event.get()});
  std::jthread thread([&] { aborter.run({some_communicator()}); });
  until("the abort", [] { return in_abort.load(); });
  const Deadline later = Deadline::in(300ms);
  until("three times the limit", [&] { return later.passed(); });
  CHECK(aborter.overdue().empty());  // behind the program's own work
  {
    const Setting lost("lost_device", "1");
    CHECK(word_of(aborter) == "NCCL did not end its abort within 100 ms");
    ends_abort = true;
    thread.join();
    CHECK(!aborter.is_waited_for());
  }
  hold.let_go();
}

TEST_CASE("nccl aborter: a leave has its limit, an unknown program that of its work, an end none") {
  const NcclLibrary nccl = nccl_with_a_slow_abort();
  NcclAborter aborter(nccl, standin_device(1), {.leave = 50ms, .abort = 50ms, .program = 100ms});
  aborter.expect_leave();
  CHECK(word_of(aborter) == "NCCL did not let go of its communicator within 100 ms");
  aborter.begin(std::nullopt);  // instead
  CHECK_THAT(word_of(aborter), Catch::EndsWith("the program's own work before that within 100 ms"));
  aborter.be_over();
  aborter.begin(std::vector<CUevent>{});
  CHECK(!aborter.is_waited_for());
  CHECK(aborter.overdue().empty());
}

TEST_CASE("nccl aborter: a rank that NCCL keeps in a call while it leaves ends, and says so") {
  Process process("does not come out of leaving", {});
  const int status = process.wait();
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 125);
  CHECK_THAT(process.text(), Catch::Contains("rank 0 ends, since NCCL did not let go of its "
                                             "communicator within 200 ms\n"));
}

TEST_CASE("nccl aborter: a rank whose GPU does not come to an end of it ends, and says so") {
  Process process("ends before a kernel of ours", {});
  const int status = process.wait();
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 125);
  CHECK_THAT(process.text(),
             Catch::Contains("rank 1 ends, since NCCL was aborted, but its GPU did not come to an "
                             "end of it within 200 ms\n"));
}

}  // namespace hvd
