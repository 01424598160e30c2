// The clock that the ranks of one host count their time-outs by.
#include <unistd.h>

#include <vector>

#include "hvd/hvd.h"
#include "tests/support/catch.h"
#include "tests/support/host_job.h"
#include "tests/support/rank_program.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

enum Number { kWaits, kEnded };

// Rank 1 never comes to the sum.
const RankProgram waiting("waiting", [] {
  init();
  if (rank() == 1) pause();
  rank_board().numbers[kWaits] = 1;
  try {
    std::vector<float> x(10);
    allreduce_(x);
  } catch (const Error& error) {
    rank_board().write(error.what());
    rank_board().numbers[kEnded] = 1;
  }
  return 0;
});

}  // namespace

TEST_CASE("host clocks: a collective times out in none of the time that the job is suspended") {
  HostJob job({.ranks = 2, .program = "waiting", .environment = {"HVD_COLLECTIVE_TIMEOUT=2"}});
  REQUIRE(job.run_until([&] { return job.board(0).numbers[kWaits] == 1; }));
  job.memory().suspend();
  const auto ended = [&] { return job.board(0).numbers[kEnded] == 1; };
  CHECK_FALSE(job.run_until(ended, 4s));
  job.memory().resume();
  REQUIRE(job.run_until(ended));
  CHECK_THAT(job.board(0).text, Catch::Contains("rank 0 waited 2 s for rank 1"));
}
