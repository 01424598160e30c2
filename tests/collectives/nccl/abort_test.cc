// How a rank ends that cannot be aborted in time: by its whole process.
#include <stdlib.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "collectives/nccl/nccl_aborter.h"
#include "collectives/nccl/nccl_backend.h"
#include "tests/collectives/nccl/engine_devices.h"
#include "tests/collectives/nccl/standin.h"
#include "tests/collectives/nccl/standin_processes.h"
#include "tests/support/catch.h"
#include "tests/support/rank_program.h"
#include "tests/support/until.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

// Two ranks of a sum behind a kernel without an end, when one breaks the epoch.
int end_behind_a_kernel() {
  const std::array backends{make_standin_backend(0, {.program = 200ms}),
                            make_standin_backend(1, {.program = 200ms})};
  Hold hold;
  run_engines(2, [&](int number, Engine& engine) {
    engine.use_device(*backends[static_cast<size_t>(number)]);
    ProgramStream stream(number);
    DeviceTensor tensor(number, stream, 1000, 1);
    tensor.sum_async(engine, "x")->wait();
    hold.launch(number, stream.get());
    const auto work = tensor.sum_async(engine, "y");
    work->wait();
    if (number == 1) engine.abort("the test ends it");
    until("an end", [&] { return work->done(); });
  });
  return 0;
}

const RankProgram behind_a_kernel("ends behind a kernel", end_behind_a_kernel);

// Two ranks whose epoch breaks; rank 1's NCCL does not end its abort.
int end_in_an_abort() {
  const Setting hangs("abort_hangs", "1"), rank("fault_rank", "1");
  const std::array backends{make_standin_backend(0, {.abort = 200ms}),
                            make_standin_backend(1, {.abort = 200ms})};
  run_engines(2, [&](int number, Engine& engine) {
    engine.use_device(*backends[static_cast<size_t>(number)]);
    ProgramStream stream(number);
    DeviceTensor tensor(number, stream, 1000, 1);
    tensor.sum_async(engine, "x")->wait();
    const auto work = tensor.sum_async(engine, "y");
    if (number == 0) engine.abort("the test ends it");
    until("an end", [&] { return work->done(); });
  });
  return 0;
}

const RankProgram in_an_abort("ends in an abort", end_in_an_abort);

// Nobody takes the thread back, and the process ends as others do.
int wait_for_an_abort() {
  const Setting hangs("abort_hangs", "1");
  const NcclLibrary& nccl = standin_nccl();
  const CudaDevice::Current current(standin_device(0));
  ncclUniqueId id{};
  ncclComm_t communicator = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  if (nccl.ncclGetUniqueId(&id) != ncclSuccess ||
      nccl.ncclCommInitRankConfig(&communicator, 1, id, 0, &config) != ncclSuccess)
    return 1;
  static auto* const aborter = new NcclAborter(nccl, standin_device(0), {.abort = 100ms});
  aborter->begin(std::vector<CUevent>{});
  static const auto* const stuck =
      new std::jthread([communicator] { aborter->run({communicator}); });
  std::string why;
  until("a word", [&] { return !(why = aborter->overdue()).empty(); });
  if (!aborter->is_waited_for() || !stuck->joinable()) return 2;
  until("NCCL", [&] { return hvd_standin_count("aborts", -1) != 0; });  // not at the exit
  std::fprintf(stderr, "%s\n", why.c_str());
  return 0;
}

const RankProgram for_an_abort("waits for an abort", wait_for_an_abort);

// A rank calls exit() with a sum under way: CUDA may be called no more, and nobody is blamed.
int exit_in_a_sum() {
  static const std::array backends{make_standin_backend(0).release(),
                                   make_standin_backend(1).release()};
  for (DeviceBackend* one : backends)
    on_exit([](int, void* backend) { static_cast<NcclBackend*>(backend)->end_with_process(); },
            dynamic_cast<NcclBackend*>(one));
  auto* const hold = new Hold;
  run_engines(2, [&](int number, Engine& engine) {
    engine.use_device(*backends[static_cast<size_t>(number)]);
    ProgramStream stream(number);
    DeviceTensor tensor(number, stream, 1000, 1);
    tensor.sum_async(engine, "x")->wait();
    hold->launch(number, stream.get());
    const auto work = tensor.sum_async(engine, "y");
    work->wait();
    if (number == 1) exit(3);
    until("an end", [&] { return work->done(); });
  });
  return 0;
}

const RankProgram in_a_sum("exits in a sum", exit_in_a_sum);

// What this program wrote on stderr, once it has ended with this exit code.
std::string words_at_the_end(const char* rank_program, int exit_code) {
  Process process(rank_program, {});
  const int status = process.wait();
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == exit_code);
  return process.text();
}

}  // namespace

TEST_CASE("abort: a rank whose own work outlasts it ends, and NCCL is not blamed") {
  CHECK_THAT(words_at_the_end("ends behind a kernel", 125),
             Catch::Contains(" ends, since NCCL was aborted, but its GPU was not through with the "
                             "program's own work before that within 200 ms\n"));
}

TEST_CASE("abort: what the program has its GPU do before has a time of its own") {
  const NcclLimits limits{.abort = 200ms};
  const std::array backends{make_standin_backend(0, limits), make_standin_backend(1, limits)};
  std::array<std::string, 2> said;
  std::atomic<int> launched{0}, early{0}, looked{0};
  Hold hold;
  run_engines(
      Hosts{2},
      [&](int number, Engine& engine) {
        engine.use_device(*backends[static_cast<size_t>(number)]);
        ProgramStream stream(number);
        DeviceTensor tensor(number, stream, 1000, 1);
        tensor.sum_async(engine, "x")->wait();
        stream.drain();
        hold.launch(number, stream.get());
        const auto work = tensor.sum_async(engine, "y");
        work->wait();
        ++launched;
        until("both are launched", [&] { return launched == 2; });
        if (number == 1) engine.abort("the test ends it");
        const Deadline later = Deadline::in(1s);
        until("five times the limit", [&] { return later.passed(); });
        early += work->done();
        if (++looked == 2) hold.let_go();
        until("an end", [&] { return work->done(); });
        said[static_cast<size_t>(number)] = error_of([&] { work->wait(); });
      },
      {}, false);
  CHECK(early == 0);
  for (const std::string& text : said)
    CHECK_THAT(text, Catch::StartsWith("CommFailure: ") && Catch::Contains("the test ends it"));
}

TEST_CASE("abort: a process that exits in a sum calls nothing more, and says nothing") {
#if defined(__SANITIZE_THREAD__)
  WARN(
      "left out: ThreadSanitizer ends a process that has threads at its exit by a status of its "
      "own");
  return;
#endif
  CHECK(words_at_the_end("exits in a sum", 3).empty());
}

TEST_CASE("abort: a rank whose NCCL does not end its abort ends") {
  CHECK_THAT(words_at_the_end("ends in an abort", 125),
             Catch::Contains("rank 1 ends, since NCCL did not end its abort within 200 ms\n"));
}

TEST_CASE("abort: who waits for one is told that it does not end, and is not held up") {
  CHECK_THAT(words_at_the_end("waits for an abort", 0),
             Catch::Contains("NCCL did not end its abort within 100 ms\n"));
}

}  // namespace hvd
