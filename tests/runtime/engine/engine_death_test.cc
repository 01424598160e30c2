// A rank dies, or is stopped and given up on, at any step: what the survivors see and what happens
// to their memory. Ranks are processes below the agent's HostMemory; nobody ends the survivors.
#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cli/agent/process_state.h"
#include "runtime/agent_peers.h"
#include "runtime/base/env.h"
#include "runtime/engine/engine.h"
#include "tests/runtime/engine/engine_ranks.h"
#include "tests/runtime/engine/engine_steps.h"
#include "tests/support/catch.h"
#include "tests/support/extent.h"
#include "tests/support/host_job.h"
#include "tests/support/rank_program.h"
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

// Submits and then, when the test says so, waits for it or calls shutdown(). Its board: what that
// came to, then what the stall check said.
const RankProgram leaver("submit and leave", [] {
  const auto milliseconds = [](const char* name) {
    return std::chrono::milliseconds(env::get_integer(name).value_or(0));
  };
  std::string warned;  // written with the token, read after the end
  EngineOptions options;
  options.collective_timeout = milliseconds("HVD_TEST_TIMEOUT_MS");
  options.stall_warning = options.stall_shutdown = milliseconds("HVD_TEST_STALL_MS");
  options.warn = [&](const std::string& text) { warned += "\n" + text; };
  auto link =
      std::make_shared<AgentConnection>(AgentAddress::parse(env::get("HVD_AGENT").value_or("")));
  Engine engine(std::make_unique<AgentPeers>(link), options);
  std::array<float, 2> data{};
  const auto work = sum_async(engine, data, "x");
  while (rank_board().numbers[StepsBoard::kMayEnd] == 0) std::this_thread::yield();
  if (!env::get("HVD_TEST_WAIT")) engine.shutdown();
  const std::string said = error_of([&] { work->wait(); });
  engine.shutdown();
  rank_board().write(said + warned);
  return 0;
});

// Of two buckets rank 0 gives one away, and leaves when the test says so; rank 1 makes the whole
// step.
const RankProgram half_a_step("half a step", [] {
  auto link =
      std::make_shared<AgentConnection>(AgentAddress::parse(env::get("HVD_AGENT").value_or("")));
  Engine engine(std::make_unique<AgentPeers>(link), {});
  BucketListSpec spec;
  spec.name = "sgd";
  spec.buckets.assign(2, {DataType::kFloat32, 5'000});
  spec.parameters = 2;
  spec.reduction.op = ReduceOp::kSum;
  const auto list = engine.make_bucket_list(spec);
  barrier(engine);
  list->ready(0, BucketList::Home::kHome);
  if (engine.world().rank == 0) {
    while (rank_board().numbers[StepsBoard::kMayEnd] == 0) std::this_thread::yield();
  } else {
    list->ready(1, BucketList::Home::kHome);
    rank_board().write(error_of([&] { list->finish({}); }));
  }
  engine.shutdown();
  return 0;
});

bool is_stopped(HostJob& job, int rank) {
  const auto state = read_process_state(job.rank(rank).pid);
  return state && state->stopped();
}

}  // namespace

TEST_CASE("engine death: a rank killed at its k-th step; survivors agree and keep their memory") {
  const int ranks = GENERATE(2, 3, 4);
  const long steps = count_steps(ranks);
  REQUIRE(steps > 100);
  // In the long run every step of every rank, else some of both.
  const long stride = thorough() ? 1 : std::max(1L, steps / 30);
  for (long k = 1; k <= steps; k += stride) {
    for (int who = 0; who < ranks; ++who) {
      if (!thorough() && who != static_cast<int>(k / stride) % ranks) continue;
      CHECK(happens_by(k, 1, [&](long step) {
        CAPTURE(ranks, step, who);
        HostJobOptions options = options_for(ranks);
        options.rank_environment[who] = at_step(step, "kill");
        HostJob job(std::move(options));
        check(job, judge_steps(job, ranks, {who}));
        return job.rank(who).status == 128 + SIGKILL;
      }));
    }
  }
}

TEST_CASE("engine death: a rank killed while ranks prove that they share memory") {
  const std::pair<const char*, int> points[] = {
      {"proof_store", 3}, {"proof_show", 1}, {"proof_found", 3}};
  for (const auto& [point, times] : points) {
    for (int k = 1; k <= times; ++k) {
      const int who = k % 3;
      CAPTURE(point, k, who);
      HostJobOptions options = options_for(3);
      options.rank_environment[who] = {"HVD_FAULT_POINT=" + std::string(point) + ":" +
                                       std::to_string(k) + ":kill"};
      HostJob job(std::move(options));
      const StepsJudgement judged = judge_steps(job, 3, {who});
      check(job, judged);
      CHECK(judged.failed() == 2);
      CHECK(job.rank(who).status == 128 + SIGKILL);
    }
  }
}

TEST_CASE("engine death: two ranks die at about the same time; the other two agree") {
  const unsigned seed = random_seed();
  std::mt19937 random(seed);
  const long steps = count_steps(4);
  for (int round = 0; round < (thorough() ? 300 : 15); ++round) {
    // The same step or nearly so, so that one dies while the others answer the first's death.
    const long k = 1 + static_cast<long>(random() % static_cast<unsigned long>(steps));
    const long apart = static_cast<long>(random() % 8);
    const int one = static_cast<int>(random() % 4);
    const int other = (one + 1 + static_cast<int>(random() % 3)) % 4;
    INFO("HVD_TEST_SEED=" << seed);
    CHECK(happens_by(k, 1, [&](long step) {
      const long later = step + std::min(apart, step - 1);  // every rank comes to the first
      CAPTURE(round, step, later, one, other);
      HostJobOptions options = options_for(4);
      options.rank_environment[one] = at_step(step, "kill");
      options.rank_environment[other] = at_step(later, "kill");
      HostJob job(std::move(options));
      check(job, judge_steps(job, 4, {one, other}));
      return job.rank(one).status == 128 + SIGKILL && job.rank(other).status == 128 + SIGKILL;
    }));
  }
}

TEST_CASE("engine death: a stopped rank is given up on after a timeout, and writes nothing later") {
  const long steps = count_steps(3);
  constexpr long kWished = 4;  // before its wish for the epoch nobody here misses it
  const long stride = thorough() ? 2 : steps / 6;
  for (long k = kWished; k <= steps; k += stride) {
    const int who = static_cast<int>(k / stride) % 3;
    CHECK(happens_by(k, kWished, [&](long step) {
      CAPTURE(step, who);
      HostJobOptions options = options_for(3);
      options.environment = {"HVD_TEST_TIMEOUT_MS=100"};
      options.rank_environment[who] = at_step(step, "stop");
      HostJob job(std::move(options));
      const StepsJudgement judged = judge_steps(job, 3, {who}, who);
      check(job, judged);
      if (job.rank(who).given_up.empty()) return false;  // nobody needed it any more
      CHECK(judged.survivors.size() == 2);
      CHECK(judged.failed() == 2);
      return true;
    }));
  }
}

TEST_CASE(
    "engine death: who was stopped after it had asked holds up neither shutdown() nor wait()") {
  const bool waits = GENERATE(false, true), by_stall_check = GENERATE(false, true);
  CAPTURE(waits, by_stall_check);
  HostJobOptions options = options_for(2);
  options.program = "submit and leave";
  options.environment = {by_stall_check ? "HVD_TEST_STALL_MS=300" : "HVD_TEST_TIMEOUT_MS=300"};
  if (waits) options.environment.push_back("HVD_TEST_WAIT=1");
  options.rank_environment[1] = {"HVD_FAULT_POINT=engine_start:1:stop"};
  HostJob job(std::move(options));
  REQUIRE(job.run_until([&] { return is_stopped(job, 1); }));
  job.board(0).numbers[StepsBoard::kMayEnd] = 1;
  CHECK(job.run(std::chrono::seconds(20)));
  INFO(job.describe());
  CHECK(job.rank(0).status == 0);
  CHECK(job.rank(1).status == 128 + SIGKILL);
  const std::string said = job.board(0).text, call = waits ? "\"x\"" : "shutdown()";
  CHECK_THAT(said, Catch::StartsWith("CommFailure: "));
  if (by_stall_check) {
    CHECK_THAT(said,
               Catch::Contains("rank 0 gave up after the stall check's shutdown time: rank 1"));
    CHECK_THAT(said, Catch::Contains("1!: [" + call + "]"));
  } else {
    CHECK_THAT(said, Catch::Contains("rank 0 waited 0.300 s for rank 1 in " + call));
  }
}

TEST_CASE(
    "engine death: shutdown() waits for who is in the midst of a bucket that both have entered") {
  HostJobOptions options = options_for(2);
  options.program = "half a step";
  options.rank_environment[1] = {"HVD_FAULT_POINT=collective_slice:1:stop"};
  HostJob job(std::move(options));
  REQUIRE(job.run_until([&] { return is_stopped(job, 1); }));
  job.board(0).numbers[StepsBoard::kMayEnd] = 1;
  REQUIRE(job.run_until([&] {
    const auto state = read_process_state(job.rank(0).pid);
    return job.facts(0).status.phase == Phase::kShutdown && state && state->letter == 'S';
  }));
  job.signal(1, SIGCONT);
  CHECK(job.run(std::chrono::seconds(20)));
  INFO(job.describe());
  CHECK(job.rank(0).status == 0);
  CHECK(job.rank(1).status == 0);
  // Of the bucket that rank 0 never gave away, not of the one that it did.
  const std::string said = job.board(1).text;
  CHECK_THAT(said, Catch::EndsWith("rank 0 let go of \"sgd\", or called shutdown(), while other "
                                   "ranks went on"));
}
