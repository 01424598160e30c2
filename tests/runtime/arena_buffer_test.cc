// Arena buffers of ranks that are processes: what keeps them.
#include <algorithm>

#include "hvd/hvd.h"
#include "tests/support/catch.h"
#include "tests/support/host_job.h"
#include "tests/support/rank_program.h"

using namespace hvd;

namespace {

float part_of(int of_rank) { return static_cast<float>(of_rank + 1); }

bool all_are(const ArenaBuffer<float>& buffer, float value) {
  return std::all_of(buffer.begin(), buffer.end(), [&](float one) { return one == value; });
}

// Whether every rank gets the right results though rank 0 lets go of its buffers as soon as it has
// submitted them, and the others submit theirs only then.
bool reduce_what_is_let_go(size_t count) {
  ArenaBuffer<float> summed = arena_buffer<float>(count), sent = arena_buffer<float>(count);
  std::fill(summed.begin(), summed.end(), part_of(rank()));
  std::fill(sent.begin(), sent.end(), part_of(rank()));
  if (rank() > 0) barrier();
  const auto sum = allreduce_async_(summed, {.name = "sum", .op = ReduceOp::kSum});
  const auto broadcast = broadcast_async_(sent, 0, {.name = "broadcast"});
  if (rank() == 0) {
    summed = {};
    sent = {};
    barrier();
  }
  sum->wait();
  broadcast->wait();
  return all_are(summed, part_of(size()) * static_cast<float>(size()) / 2) &&
         all_are(sent, part_of(0));
}

const RankProgram letting_go("letting go", [] {
  init();
  // In the words beside the entry, and where it lies.
  const bool right = reduce_what_is_let_go(10) && reduce_what_is_let_go(100'000);
  shutdown();
  return right ? 0 : 1;
});

}  // namespace

TEST_CASE("arena buffer: let go of under way, it is kept until the operation is over") {
  HostJob job({.ranks = 3, .program = "letting go"});
  REQUIRE(job.run());
  INFO(job.describe());
  for (int i = 0; i < 3; ++i) CHECK(job.rank(i).status == 0);
}
