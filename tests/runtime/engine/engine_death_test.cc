// A rank dies, or is stopped and given up on, at any step: what the survivors see and what happens
// to their memory. Ranks are processes below the agent's HostMemory; nobody ends the survivors.
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "runtime/agent_peers.h"
#include "runtime/base/env.h"
#include "runtime/engine/engine.h"
#include "tests/runtime/engine/engine_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/host_job.h"
#include "tests/support/rank_program.h"
#include "tests/support/seed.h"
#include "tests/support/temporary_directory.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

constexpr int kSteps = 6;
constexpr std::byte kPattern{0x5a};

// What each number of a board means.
enum Number { kCompleted, kWrong, kJudged, kLate, kMayEnd, kStepsApplied, kInStore };

// Memory on pages of its own, so that it can be filled and looked at after the end of the epoch.
template <size_t N>
struct Data {
  std::array<float, N> values;
  void fill(float x) { values.fill(x); }
  int wrong(float x) const {
    return static_cast<int>(
        std::count_if(values.begin(), values.end(), [x](float v) { return v != x; }));
  }
};

constexpr size_t kPart = 2'000, kRanksMax = 4;

struct Memory {
  Data<3> small, other_small;
  Data<9'000> large, other_large, broadcast;
  Data<kPart> part;
  Data<kRanksMax * kPart> gathered;
  std::vector<std::span<float>> all() {
    return {small.values,     large.values, other_small.values, other_large.values,
            broadcast.values, part.values,  gathered.values};
  }
};

// Every way to use the Store. Whoever fails here never comes to the first collective, so nobody
// completes that.
void meet_in_store(Engine& engine, Deadline deadline) {
  Store& store = engine.peers().store();
  const World& world = engine.world();
  rank_board().numbers[kInStore] = 1;
  store.set("rank " + std::to_string(world.rank), to_bytes("here"));
  std::vector<std::string> all;
  for (int rank = 0; rank < world.size; ++rank) all.push_back("rank " + std::to_string(rank));
  store.wait(all, deadline);
  for (const std::string& key : all)
    rank_board().numbers[kWrong] += store.get(key, deadline) != to_bytes("here");
  if (store.add("come", 1) == world.size) store.set("all", to_bytes("come"));
  store.wait(std::vector<std::string>{"all"}, deadline);
  rank_board().numbers[kInStore] = 0;
}

// One of each kind of operation per step; what completes is right to the bit, and counted.
class Steps {
 public:
  Steps(Engine& engine, Memory& memory) : engine_(engine), memory_(memory) {
    BucketListSpec spec;
    spec.name = "sgd";
    spec.buckets = {{DataType::kFloat32, 5'000}, {DataType::kFloat32, 20'000}};
    spec.parameters = 2;
    spec.reduction.op = ReduceOp::kSum;
    list_ = engine.make_bucket_list(spec);
  }

  void run() {
    const int ranks = engine_.world().size, rank = engine_.world().rank;
    for (int step = 0; step < kSteps; ++step) {
      const auto mine = static_cast<float>(rank + step);
      const int total = ranks * step + ranks * (ranks - 1) / 2;
      const auto all = static_cast<float>(total);
      for (int bucket = 0; bucket < 2; ++bucket) {
        std::span values = bucket_values(bucket);
        std::fill(values.begin(), values.end(), mine);
      }
      memory_.small.fill(mine);
      memory_.large.fill(mine);
      memory_.other_small.fill(mine);
      memory_.other_large.fill(mine);
      auto one = sum_async(engine_, memory_.small.values, "one");
      list_->ready(0, BucketList::Home::kHome);
      auto two = sum_async(engine_, memory_.large.values, step % 2 == 0 ? "two" : "three");
      sum(engine_, memory_.other_small.values);
      completed(memory_.other_small.wrong(all));
      list_->ready(1, BucketList::Home::kHome);
      sum(engine_, memory_.other_large.values);
      completed(memory_.other_large.wrong(all));
      one->wait();
      completed(memory_.small.wrong(all));
      memory_.broadcast.fill(mine);
      broadcast(engine_, memory_.broadcast.values, step % ranks);
      completed(memory_.broadcast.wrong(static_cast<float>(step % ranks + step)));
      memory_.part.fill(mine);
      allgather(engine_, memory_.part.values, memory_.gathered.values);
      completed(wrong_parts(ranks, step));
      list_->finish({});
      for (int bucket = 0; bucket < 2; ++bucket)
        for (const float x : bucket_values(bucket)) rank_board().numbers[kWrong] += x != all;
      ++rank_board().numbers[kStepsApplied];
      two->wait();
      completed(memory_.large.wrong(all));
    }
  }

  std::span<float> bucket_values(int bucket) {
    return {reinterpret_cast<float*>(list_->memory(bucket, BucketList::Home::kHome)),
            bucket == 0 ? 5'000u : 20'000u};
  }

 private:
  int wrong_parts(int ranks, int step) const {
    int wrong = 0;
    for (size_t i = 0; i < static_cast<size_t>(ranks) * kPart; ++i)
      wrong += memory_.gathered.values[i] != static_cast<float>(static_cast<int>(i / kPart) + step);
    return wrong;
  }
  static void completed(int wrong) {
    rank_board().numbers[kWrong] += wrong;
    ++rank_board().numbers[kCompleted];
  }

  Engine& engine_;
  Memory& memory_;
  std::unique_ptr<BucketList> list_;
};

void fill_with_pattern(std::span<float> values) {
  std::fill_n(reinterpret_cast<std::byte*>(values.data()), values.size_bytes(), kPattern);
}

int late_writes(std::span<float> values) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
  return static_cast<int>(
      std::count_if(bytes, bytes + values.size_bytes(), [](std::byte b) { return b != kPattern; }));
}

// After an exception: nobody may write what the epoch knew. Waits until the test says that all
// others have come as far.
void judge_memory(Memory& memory, Steps* steps) {
  std::vector<std::span<float>> all = memory.all();
  if (steps != nullptr)
    for (int bucket = 0; bucket < 2; ++bucket) all.push_back(steps->bucket_values(bucket));
  for (const auto& one : all) fill_with_pattern(one);
  rank_board().numbers[kJudged] = 1;
  while (rank_board().numbers[kMayEnd] == 0) sched_yield();
  for (const auto& one : all) rank_board().numbers[kLate] += late_writes(one);
}

int run_steps() {
  auto memory = std::make_unique<Memory>();
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Steps> steps;
  try {
    auto link =
        std::make_shared<AgentConnection>(AgentAddress::parse(env::get("HVD_AGENT").value_or("")));
    EngineOptions options;
    Deadline deadline = Deadline::never();
    if (const auto ms = env::get_integer("HVD_TEST_TIMEOUT_MS")) {
      options.collective_timeout = options.start_timeout = std::chrono::milliseconds(*ms);
      deadline = Deadline::in(options.collective_timeout);
    }
    engine = std::make_unique<Engine>(std::make_unique<AgentPeers>(link), options);
    meet_in_store(*engine, deadline);
    steps = std::make_unique<Steps>(*engine, *memory);
    steps->run();
    engine->shutdown();
  } catch (const CommFailure& error) {
    rank_board().write(error.what());
  } catch (const Error& error) {  // a timeout in the Store or in init()
    rank_board().write(error.what());
    if (engine) engine->abort(error.what());
  }
  judge_memory(*memory, steps.get());
  return 0;
}

const RankProgram program("engine_steps", run_steps);

struct Judgement {
  bool in_time = false, alike = true;
  int64_t wrong = 0, late = 0, survivors = 0, failed = 0, crashed = 0;
  int64_t unknown = 0;  // of which the agent does not know whether they were told
};

// Lets the job go on until every rank is judged or dead, then compares the survivors: whoever is no
// victim has to be one. The rank `stopped` may have stopped where nobody needs it any more: then it
// goes on when the others ended.
Judgement judge(HostJob& job, int ranks, const std::vector<int>& victims, int stopped = -1) {
  Judgement result;
  const auto others = [&](auto ready) {
    for (int k = 0; k < ranks; ++k)
      if (k != stopped && !ready(k)) return false;
    return true;
  };
  const auto has_ended = [&](int k) { return job.rank(k).status.has_value(); };
  const auto is_judged = [&](int k) { return has_ended(k) || job.board(k).numbers[kJudged] != 0; };
  result.in_time = job.run_until([&] { return others(is_judged); }, 60s);
  for (int k = 0; k < ranks; ++k) job.board(k).numbers[kMayEnd] = 1;
  result.in_time &= job.run_until([&] { return others(has_ended); }, 60s);
  if (stopped >= 0 && !has_ended(stopped)) job.signal(stopped, SIGCONT);
  result.in_time &= job.run(60s);
  const RankBoard* first = nullptr;
  for (int k = 0; k < ranks; ++k) {
    if (job.rank(k).status != 0) {
      const bool victim = std::ranges::find(victims, k) != victims.end();
      result.crashed += !victim || job.rank(k).status != 128 + SIGKILL;
      continue;
    }
    const RankBoard& board = job.board(k);
    if (first == nullptr) first = &board;
    ++result.survivors;
    result.failed += board.text[0] != 0;
    result.wrong += board.numbers[kWrong];
    result.late += board.numbers[kLate];
    result.alike &= board.numbers[kCompleted] == first->numbers[kCompleted] &&
                    board.numbers[kStepsApplied] == first->numbers[kStepsApplied] &&
                    (board.text[0] == 0) == (first->text[0] == 0);
    // The Store is not the program's.
    if (board.numbers[kInStore] == 0)
      result.unknown += job.memory().facts(k).status.told != (board.text[0] != 0);
    // The Store's text names what was looked for.
    if (board.numbers[kInStore] == 0 && first->numbers[kInStore] == 0)
      result.alike &= strcmp(board.text, first->text) == 0;
  }
  return result;
}

HostJobOptions options_for(int ranks) {
  HostJobOptions options;
  options.ranks = ranks;
  options.program = "engine_steps";
  return options;
}

std::vector<std::string> at_step(long k, const char* action) {
  return {"HVD_FAULT_POINT=*:" + std::to_string(k) + ":" + action};
}

void check(HostJob& job, const Judgement& judged) {
  INFO(job.describe());
  CHECK(judged.in_time);
  CHECK(judged.crashed == 0);
  CHECK(judged.alike);
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
  const Judgement judged = judge(job, ranks, {});
  check(job, judged);
  CHECK(judged.survivors == ranks);
  CHECK(judged.failed == 0);
  CHECK(job.board(0).numbers[kCompleted] == 6 * kSteps);
  return count_fault_points(file);
}

bool thorough() { return env::get("HVD_TEST_LONG").has_value(); }

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
      check(job, judge(job, ranks, {who}));
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
    check(job, judge(job, 4, {one, other}));
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
    const Judgement judged = judge(job, 3, {who}, who);
    check(job, judged);
    if (job.rank(who).given_up.empty()) continue;  // it took fewer steps than rank 1
    CHECK(judged.survivors == 2);
    CHECK(judged.failed == 2);
  }
}
