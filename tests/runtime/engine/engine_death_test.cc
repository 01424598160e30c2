// A rank dies, or is stopped and given up on, at any step: what the survivors see and what happens
// to their memory. Ranks are processes below the agent's HostMemory; nobody ends the survivors.
#include <signal.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/runtime/engine/engine_steps.h"
#include "tests/support/catch.h"
#include "tests/support/extent.h"
#include "tests/support/host_job.h"
#include "tests/support/seed.h"
#include "tests/support/temporary_directory.h"

using namespace hvd;

namespace {

HostJobOptions options_for(int ranks) {
  HostJobOptions options;
  options.ranks = ranks;
  options.program = "engine_steps";
  return options;
}

// On one host what becomes of an operation is the same on all survivors.
bool are_alike(const StepsJudgement& judged) {
  return std::ranges::all_of(judged.survivors, [&](const Survivor& one) {
    const Survivor& first = judged.survivors.front();
    const bool same_words = one.in_store || first.in_store || one.error == first.error;
    return one.completed == first.completed && one.steps == first.steps && same_words &&
           one.error.empty() == first.error.empty();
  });
}

void check(HostJob& job, const StepsJudgement& judged) {
  INFO(job.describe());
  CHECK(judged.in_time);
  CHECK(judged.crashed == 0);
  CHECK(are_alike(judged));
  CHECK(judged.wrong == 0);
  CHECK(judged.late == 0);
  CHECK(judged.unknown == 0);
}

// How many steps rank 1 of so many takes when nobody dies.
long count_steps(int ranks) {
  const TemporaryDirectory directory;
  const std::string file = directory.path() / "counts";
  HostJobOptions options = options_for(ranks);
  options.rank_environment[1] = {"HVD_FAULT_POINT=count:" + file};
  HostJob job(std::move(options));
  const StepsJudgement judged = judge_steps(job, ranks, {});
  check(job, judged);
  CHECK(judged.survivors.size() == static_cast<size_t>(ranks));
  CHECK(judged.failed() == 0);
  CHECK(judged.survivors[0].completed == kCompletedEachStep * kEngineSteps);
  return count_fault_points(file);
}

}  // namespace

TEST_CASE("engine death: a rank killed at its k-th step; survivors agree and keep their memory") {
  const int ranks = GENERATE(2, 3, 4);
  const long steps = count_steps(ranks);
  REQUIRE(steps > 100);
  // In the long run every step of every rank, else some of both.
  const long stride = thorough() ? 1 : std::max(1L, steps / 30);
  int died = 0;
  for (long k = 1; k <= steps; k += stride) {
    for (int who = 0; who < ranks; ++who) {
      if (!thorough() && who != static_cast<int>(k / stride) % ranks) continue;
      CAPTURE(ranks, k, who);
      HostJobOptions options = options_for(ranks);
      options.rank_environment[who] = at_step(k, "kill");
      HostJob job(std::move(options));
      check(job, judge_steps(job, ranks, {who}));
      died += job.rank(who).status == 128 + SIGKILL;
    }
  }
  CHECK(died > 15);
}

TEST_CASE("engine death: two ranks die at about the same time; the other two agree") {
  const unsigned seed = random_seed();
  std::mt19937 random(seed);
  const long steps = count_steps(4);
  int both = 0;
  for (int round = 0; round < (thorough() ? 300 : 15); ++round) {
    // The same step or nearly so, so that one dies while the others answer the first's death.
    const long k = 1 + static_cast<long>(random() % static_cast<unsigned long>(steps));
    const long later = k + static_cast<long>(random() % 8);
    const int one = static_cast<int>(random() % 4);
    const int other = (one + 1 + static_cast<int>(random() % 3)) % 4;
    INFO("HVD_TEST_SEED=" << seed);
    CAPTURE(round, k, later, one, other);
    HostJobOptions options = options_for(4);
    options.rank_environment[one] = at_step(k, "kill");
    options.rank_environment[other] = at_step(later, "kill");
    HostJob job(std::move(options));
    check(job, judge_steps(job, 4, {one, other}));
    both += job.rank(one).status == 128 + SIGKILL && job.rank(other).status == 128 + SIGKILL;
  }
  CHECK(both > 5);
}

TEST_CASE("engine death: a stopped rank is given up on after a timeout, and writes nothing later") {
  const long steps = count_steps(3);
  constexpr long kWished = 4;  // before its wish for the epoch nobody here misses it
  const long stride = thorough() ? 2 : steps / 6;
  for (long k = kWished; k <= steps; k += stride) {
    const int who = static_cast<int>(k / stride) % 3;
    CAPTURE(k, who);
    HostJobOptions options = options_for(3);
    options.environment = {"HVD_TEST_TIMEOUT_MS=100"};
    options.rank_environment[who] = at_step(k, "stop");
    HostJob job(std::move(options));
    const StepsJudgement judged = judge_steps(job, 3, {who}, who);
    check(job, judged);
    if (job.rank(who).given_up.empty()) continue;  // it took fewer steps than rank 1
    CHECK(judged.survivors.size() == 2);
    CHECK(judged.failed() == 2);
  }
}
