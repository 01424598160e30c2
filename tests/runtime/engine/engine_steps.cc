// What every rank does, what it counts, and how it looks after its memory in the end.
#include "tests/runtime/engine/engine_steps.h"

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/agent_peers.h"
#include "runtime/base/env.h"
#include "runtime/engine/engine.h"
#include "tests/runtime/engine/engine_ranks.h"
#include "tests/support/memory_pattern.h"
#include "tests/support/rank_program.h"

namespace hvd {
namespace {

using Board = StepsBoard;

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
  rank_board().numbers[Board::kInStore] = 1;
  store.set("rank " + std::to_string(world.rank), to_bytes("here"));
  std::vector<std::string> all;
  for (int rank = 0; rank < world.size; ++rank) all.push_back("rank " + std::to_string(rank));
  store.wait(all, deadline);
  for (const std::string& key : all)
    rank_board().numbers[Board::kWrong] += store.get(key, deadline) != to_bytes("here");
  if (store.add("come", 1) == world.size) store.set("all", to_bytes("come"));
  store.wait(std::vector<std::string>{"all"}, deadline);
  rank_board().numbers[Board::kInStore] = 0;
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
    for (int step = 0; step < kEngineSteps; ++step) {
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
        for (const float x : bucket_values(bucket)) rank_board().numbers[Board::kWrong] += x != all;
      ++rank_board().numbers[Board::kStepsApplied];
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
    rank_board().numbers[Board::kWrong] += wrong;
    ++rank_board().numbers[Board::kCompleted];
  }

  Engine& engine_;
  Memory& memory_;
  std::unique_ptr<BucketList> list_;
};

// After an exception: nobody may write what the epoch knew. Waits until the test says that all
// others have come as far.
void judge_memory(Memory& memory, Steps* steps) {
  std::vector<std::span<float>> all = memory.all();
  if (steps != nullptr)
    for (int bucket = 0; bucket < 2; ++bucket) all.push_back(steps->bucket_values(bucket));
  for (const auto& one : all) write_pattern(std::as_writable_bytes(one));
  rank_board().numbers[Board::kJudged] = 1;
  while (rank_board().numbers[Board::kMayEnd] == 0) sched_yield();
  for (const auto& one : all)
    rank_board().numbers[Board::kLate] += changed_bytes(std::as_bytes(one));
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

}  // namespace
}  // namespace hvd
