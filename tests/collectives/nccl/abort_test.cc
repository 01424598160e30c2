// How a rank ends that cannot be aborted in time: by its whole process.
#include <sys/wait.h>

#include <array>

#include "tests/collectives/nccl/engine_devices.h"
#include "tests/collectives/nccl/standin_processes.h"
#include "tests/support/catch.h"
#include "tests/support/rank_program.h"
#include "tests/support/until.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

// Two ranks of a sum behind a kernel without an end, when one breaks the epoch.
int end_behind_a_kernel() {
  const std::array backends{make_standin_backend(0, {.abort = 200ms}),
                            make_standin_backend(1, {.abort = 200ms})};
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

}  // namespace

TEST_CASE("abort: a rank whose own work outlasts it ends, and NCCL is not blamed") {
  Process process("ends behind a kernel", {});
  const int status = process.wait();
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 125);
  CHECK_THAT(process.text(),
             Catch::Contains(" ends, since NCCL was aborted, but its GPU was not through with the "
                             "program's own work before that within 200 ms\n"));
}

}  // namespace hvd
