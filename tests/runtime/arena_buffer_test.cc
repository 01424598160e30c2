// Arena buffers of ranks that are processes: what keeps them.
#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

#include "hvd/hvd.h"
#include "tests/support/catch.h"
#include "tests/support/few_descriptors.h"
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

// Of anonymous memory that is shared, as the agent's all is.
int64_t mappings() {
  int64_t count = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    count += line.find("/memfd:") != std::string::npos;
  return count;
}

const RankProgram outliving("outliving", [] {
  init();
  shutdown();
  const int64_t before = mappings();
  init();
  ArenaBuffer<float> buffer = arena_buffer<float>(1000);
  const int64_t with_peers = mappings();
  shutdown();
  const int64_t alone = mappings();
  buffer = {};
  return with_peers >= before + 3 && alone == before + 1 && mappings() == before ? 0 : 1;
});

// Rank 1 has no room for what the agent passes: an error on every rank, and no more than that.
const RankProgram few_descriptors("few descriptors", [] {
  init();
  std::optional<FewDescriptors> few;
  if (rank() == 1) few.emplace(2);  // of three; a sanitizer takes two to look at an exception
  bool right = false;
  try {
    arena_buffer<float>(100'000);
  } catch (const Error& error) {
    rank_board().write(error.what());
    right = error.code() == ErrorCode::kUnavailable;
  }
  few.reset();
  ArenaBuffer<float> buffer = arena_buffer<float>(100'000);
  std::fill(buffer.begin(), buffer.end(), 1.0f);
  allreduce_(buffer, {.op = ReduceOp::kSum});
  shutdown();
  return right && all_are(buffer, 3) ? 0 : 1;
});

void check_all_ranks_finish(const std::string& program) {
  HostJob job({.ranks = 3, .program = program});
  REQUIRE(job.run());
  INFO(job.describe());
  for (int i = 0; i < 3; ++i) CHECK(job.rank(i).status == 0);
}

}  // namespace

TEST_CASE("arena buffer: let go of under way, it is kept until the operation is over") {
  check_all_ranks_finish("letting go");
}

TEST_CASE("arena buffer: of an epoch that is over only the own piece stays mapped") {
  check_all_ranks_finish("outliving");
}

TEST_CASE("arena buffer: a rank without room for descriptors says so to all, and lives") {
  HostJob job({.ranks = 3, .program = "few descriptors"});
  REQUIRE(job.run());
  INFO(job.describe());
  for (int i = 0; i < 3; ++i) {
    CHECK(job.rank(i).status == 0);
    CHECK_THAT(job.board(i).text, Catch::Contains("rank 1") && Catch::Contains("ulimit -n"));
  }
}
