// Sleeping on links: between hosts nobody rings, so what comes in has to wake who waits for it.
//
// The backstop of a sleep, 50 ms, would hide a sleeper that looks at too little: so of many rounds
// the faster ones have to be far below it.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "collectives/backends.h"
#include "runtime/base/usable_cpus.h"
#include "runtime/engine/progress.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

constexpr int kRounds = 24;
constexpr auto kFarBelowBackstop = 25ms;
constexpr size_t kCount = 1000;  // one message: it takes one waking, also where CPUs are few

std::vector<int> hosts_of_one(int ranks) { return std::vector<int>(static_cast<size_t>(ranks), 1); }

struct Sum {
  explicit Sum(float value, size_t count = kCount) : data(count, value) {
    operation.kind = OperationKind::kAllreduce;
    operation.result = {data.data(), count, DataType::kFloat32};
    operation.reduction.op = ReduceOp::kSum;
  }
  bool done() const {
    return operation.outcome.load(std::memory_order_acquire) != Outcome::kPending;
  }

  std::vector<float> data;
  Operation operation;
};

// Rank 0 of two hosts has a Progress and two communicators; rank 1 moves its own by hand.
struct Scene {
  Scene()
      : ranks(hosts_of_one(2), tcp_factory()),
        progress(*ranks.rank(0).peers, {}),
        asleep(ranks.world().host(0).block().rank(0).asleep) {
    for (int k = 0; k < 2; ++k) others.push_back(tcp_factory(1)(ranks.rank(k)));
    progress.hold();
    progress.add(*ranks.rank(0).communicator);
    progress.add(*others[0]);
    progress.leave();
    progress.start_engine_thread();
  }
  ~Scene() { progress.stop_engine_thread(); }

  void start(Communicator& communicator, Sum& sum) {
    progress.hold();
    communicator.start(sum.operation);
  }
  void wait(Sum& sum, std::atomic<bool>* sleeps = nullptr) {
    Awaited awaited;
    awaited.on_sleep = [sleeps](TimePoint) {
      if (sleeps != nullptr) *sleeps = true;
    };
    awaited.operation = &sum.operation;
    awaited.what = [] { return std::string("a sum"); };
    progress.wait_and_leave(awaited);
  }
  // Until one of rank 0's threads sleeps, and would be rung.
  void until_asleep(Sleeper sleeper) {
    until([&] { return (asleep.load() >> sleeper & 1) != 0; });
  }
  template <class Done>
  static void until(Done done) {
    const Deadline deadline = Deadline::in(60s);
    while (!done()) {
      std::this_thread::yield();
      if (deadline.passed()) throw std::runtime_error("waited for a minute");
    }
  }
  // What rank 1 does in a round, once rank 0 sleeps; how long it takes until `done`.
  Clock::duration answer(Communicator& communicator, Sleeper sleeper, const Sum& awaited) {
    Sum own(2);
    until_asleep(sleeper);
    const TimePoint begin = Clock::now();
    communicator.start(own.operation);
    until([&] {
      communicator.progress();
      return own.done() && awaited.done();
    });
    return Clock::now() - begin;
  }

  RankThreads ranks;
  std::vector<std::unique_ptr<Communicator>> others;
  Progress progress;
  const std::atomic<uint32_t>& asleep;
};

void check(std::vector<Clock::duration>& times) {
  std::ranges::sort(times);
  CHECK(times[times.size() / 4] < kFarBelowBackstop);
}

}  // namespace

TEST_CASE("progress: ranks of other hosts count where they share this one's CPUs") {
  for (const int more : {0, 1}) {
    InProcessWorld world(hosts_of_one(usable_cpus() + more));
    const auto peers = world.peers(0);
    CHECK(Progress(*peers, {}).spins() == (more == 0));
  }
}

TEST_CASE("progress: a sleeping caller is woken by its links") {
  Scene scene;
  std::vector<Clock::duration> times;
  for (int round = 0; round < kRounds; ++round) {
    Sum sum(1);
    std::jthread caller([&] {
      scene.start(*scene.ranks.rank(0).communicator, sum);
      scene.wait(sum);
    });
    times.push_back(scene.answer(*scene.ranks.rank(1).communicator, kCaller, sum));
    caller.join();
    REQUIRE(sum.operation.outcome == Outcome::kComplete);
    REQUIRE(std::ranges::count(sum.data, 3.0f) == kCount);
  }
  check(times);
}

TEST_CASE("progress: the engine thread is woken by links when nobody waits") {
  Scene scene;
  std::vector<Clock::duration> times;
  for (int round = 0; round < kRounds; ++round) {
    Sum sum(1);
    scene.start(*scene.ranks.rank(0).communicator, sum);
    while (scene.progress.advance()) {
    }
    scene.progress.leave();
    times.push_back(scene.answer(*scene.ranks.rank(1).communicator, kEngineThread, sum));
    REQUIRE(sum.operation.outcome == Outcome::kComplete);
  }
  check(times);
}

TEST_CASE("progress: who sleeps already watches the links of a later caller, too") {
  std::vector<Clock::duration> times;
  for (int round = 0; round < kRounds; ++round) {
    Scene scene;  // anew: who has watched these links before goes on doing so
    Sum long_awaited(1), sum(1);
    std::jthread first([&] {
      scene.start(*scene.ranks.rank(0).communicator, long_awaited);
      scene.wait(long_awaited);
    });
    scene.until_asleep(kCaller);
    std::atomic<bool> sleeps{false};
    std::jthread second([&] {
      scene.start(*scene.others[0], sum);
      scene.wait(sum, &sleeps);
    });
    Scene::until([&] { return sleeps.load(); });
    times.push_back(scene.answer(*scene.others[1], kCaller, sum));
    second.join();
    REQUIRE(sum.operation.outcome == Outcome::kComplete);
    REQUIRE_FALSE(long_awaited.done());
    scene.answer(*scene.ranks.rank(1).communicator, kCaller, long_awaited);
    first.join();
  }
  check(times);
}

TEST_CASE("progress: calls of several threads between hosts, over and over") {
  Scene scene;
  constexpr int kCalls = 200;
  std::vector<std::jthread> callers;
  std::atomic<int> complete{0};
  for (Communicator* communicator : {scene.ranks.rank(0).communicator.get(), scene.others[0].get()})
    callers.emplace_back([&, communicator] {
      for (int call = 0; call < kCalls; ++call) {
        Sum sum(1, call % 7 == 0 ? 300'000 : 10);
        scene.start(*communicator, sum);
        scene.wait(sum);
        complete += sum.operation.outcome == Outcome::kComplete && sum.data[3] == 3;
      }
    });
  std::vector<std::unique_ptr<Sum>> own[2];
  Communicator* const mine[] = {scene.ranks.rank(1).communicator.get(), scene.others[1].get()};
  for (int call = 0; call < kCalls; ++call)
    for (auto& sums : own) sums.push_back(std::make_unique<Sum>(2, call % 7 == 0 ? 300'000 : 10));
  for (size_t i = 0; i < 2; ++i)
    for (const auto& sum : own[i]) mine[i]->start(sum->operation);
  const Deadline deadline = Deadline::in(60s);
  while ((!mine[0]->idle() || !mine[1]->idle()) && !deadline.passed()) {
    mine[0]->progress();
    mine[1]->progress();
  }
  REQUIRE((mine[0]->idle() && mine[1]->idle()));
  callers.clear();
  CHECK(complete == 2 * kCalls);
}
