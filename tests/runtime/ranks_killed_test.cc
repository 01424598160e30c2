// A rank killed at the k-th step of all that a program calls: what must hold for the others.
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "hvd/hvd.h"
#include "tests/runtime/rank_outcome.h"
#include "tests/support/extent.h"

using namespace hvd;

namespace {

constexpr unsigned char kCanary = 0xa5;

bool is_canary(std::span<const float> data) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(data.data());
  return std::all_of(bytes, bytes + data.size_bytes(),
                     [](unsigned char byte) { return byte == kCanary; });
}

// init, segment growth, each collective small, large and staged, an asynchronous wait, shutdown.
// At the end each fills its memory with a pattern, and looks at it again when all have come so far.
const RankProgram steps("steps", [] {
  ArenaBuffer<float> shared;
  std::vector<float> own(40'000, 1), small(16, 1);
  const int status = guarded([&] {
    init();
    rank_board().numbers[kStep] = 1;
    shared = arena_buffer<float>(70'000);
    rank_board().numbers[kStep] = 2;
    allreduce_(small, {.op = ReduceOp::kSum});
    std::fill(shared.begin(), shared.end(), 1.0f);
    allreduce_(shared, {.op = ReduceOp::kSum});
    allreduce_(own, {.op = ReduceOp::kSum});
    rank_board().numbers[kStep] = 3;
    std::fill(shared.begin(), shared.end(), static_cast<float>(rank()));
    const int last = size() - 1;
    broadcast_(shared, last);
    expect(std::count(shared.begin(), shared.end(), static_cast<float>(last)) ==
           std::ssize(shared));
    const std::vector<float> all = allgather(std::vector<float>(3, static_cast<float>(rank())));
    for (size_t i = 0; i < all.size(); ++i) {
      const size_t from = i / 3;
      expect(all[i] == static_cast<float>(from));
    }
    barrier();
    rank_board().numbers[kStep] = 4;
    const auto work = allreduce_async_(own, {.name = "async", .op = ReduceOp::kSum});
    work->wait();
    rank_board().numbers[kStep] = 5;
    shutdown();
  });
  std::memset(own.data(), kCanary, own.size() * sizeof(float));
  if (shared.size() != 0) std::memset(shared.data(), kCanary, shared.size() * sizeof(float));
  rank_board().numbers[kAtRest] = 1;
  while (rank_board().numbers[kMayEnd] == 0) sched_yield();
  if (!is_canary(own) || (shared.size() != 0 && !is_canary(shared)))
    rank_board().numbers[kLateWrites] = 1;
  return status;
});

std::string temporary_file(const char* name) {
  return (std::filesystem::temp_directory_path() /
          (std::string(name) + "." + std::to_string(getpid())))
      .string();
}

// Lets the ranks look at their memory when all are at rest or dead; false: not within a minute.
bool run(HostJob& job, int ranks) {
  const bool at_rest = job.run_until([&] {
    for (int i = 0; i < ranks; ++i)
      if (!job.rank(i).status && job.board(i).numbers[kAtRest] == 0) return false;
    return true;
  });
  for (int i = 0; i < ranks; ++i) job.board(i).numbers[kMayEnd] = 1;
  return job.run() && at_rest;
}

// How often rank `victim` passes fault points when nothing goes wrong.
long count_steps(int ranks, int victim) {
  const std::string file = temporary_file("hvd-steps");
  std::filesystem::remove(file);
  HostJob job({.ranks = ranks,
               .program = "steps",
               .rank_environment = {{victim, {"HVD_FAULT_POINT=count:" + file}}}});
  REQUIRE(run(job, ranks));
  INFO(job.describe());
  for (int i = 0; i < ranks; ++i) REQUIRE(job.rank(i).status == 0);
  const long count = count_fault_points(file);
  std::filesystem::remove(file);
  return count;
}

struct Deaths {
  int killed = 0, failed = 0, finished = 0;
};

// The victim is killed at its k-th step. What must hold for all others: nobody hangs, nobody is
// given up on, the same outcome of init, of each call, and memory that stays as it was left.
void kill_at(int ranks, int victim, long k, Deaths& deaths) {
  CAPTURE(ranks, victim, k);
  HostJob job(
      {.ranks = ranks,
       .program = "steps",
       .rank_environment = {{victim, {"HVD_FAULT_POINT=*:" + std::to_string(k) + ":kill"}}}});
  const bool ended = run(job, ranks);
  INFO(job.describe());
  REQUIRE(ended);
  if (job.rank(victim).status == 128 + SIGKILL) ++deaths.killed;
  int64_t outcome = -1, step = -1;
  for (int i = 0; i < ranks; ++i) {
    if (i == victim) continue;
    REQUIRE(job.rank(i).given_up.empty());
    REQUIRE(job.board(i).numbers[kLateWrites] == 0);
    REQUIRE(job.board(i).numbers[kWrong] == 0);
    const int64_t own = job.board(i).numbers[kOutcome];
    REQUIRE((own == kFinished || own == kFailed));
    REQUIRE(job.rank(i).status == (own == kFinished ? 0 : kFailedStatus));
    (own == kFinished ? deaths.finished : deaths.failed) += 1;
    REQUIRE(job.memory().facts(i).status.told == (own == kFailed));
    // A call that completes on one survivor completes on all: so they fail in the same one.
    if (outcome == -1) outcome = own;
    if (step == -1) step = job.board(i).numbers[kStep];
    REQUIRE(own == outcome);
    REQUIRE(job.board(i).numbers[kStep] == step);
  }
}

}  // namespace

TEST_CASE("ranks: killed at any step of init, growth, collectives, waits and shutdown") {
  Deaths deaths;
  for (int ranks : {2, 3}) {
    for (int victim = 0; victim < (thorough() ? ranks : 1); ++victim) {
      const long count = count_steps(ranks, victim);
      REQUIRE(count > 50);
      // All k in the long run; else those of init(), then some of the rest.
      const long stride = thorough() ? 1 : std::max(1L, count / 37);
      for (long k = 1; k <= count; k += k < 30 ? 1 : stride) kill_at(ranks, victim, k, deaths);
    }
  }
  WARN(deaths.killed << " killed, " << deaths.failed << " survivors failed, " << deaths.finished
                     << " finished");
  CHECK(deaths.killed > 100);
  CHECK(deaths.failed > 100);
}
