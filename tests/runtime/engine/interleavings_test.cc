// Calls of every kind from two threads of each rank, mixed at random: right results, and an end.
//
// What is called follows from one seed, the same on all ranks; in which order follows from the seed
// and the rank, as far as a program may choose it. HVD_TEST_SEED replays a run.
#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/engine/engine_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/extent.h"
#include "tests/support/seed.h"

using namespace hvd;

namespace {

constexpr int kRanks = 4;
constexpr size_t kCallsPerThread = 5'000;
constexpr size_t kCallsBetweenHosts = 1'000;  // each costs many system calls

// One call, the same on all ranks.
struct Call {
  OperationKind kind = OperationKind::kAllreduce;
  ReduceOp op = ReduceOp::kSum;
  bool integers = false;
  size_t count = 0;  // of the first rank; an allgather's k-th part has k more
  int root = 0;
  int64_t salt = 0;
  std::string name;
};

// A round: no rank waits for what it submitted before all ranks can have submitted it.
struct Round {
  std::vector<Call> submitted;  // in any order, between the synchronous calls
  std::vector<Call> called;     // in this order
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  size_t below(size_t limit) { return random_() % limit; }
  bool one_of(size_t many) { return below(many) == 0; }
  template <class Items>
  void shuffle(Items& items) {
    std::shuffle(items.begin(), items.end(), random_);
  }

  Call call(const std::string& name) {
    constexpr OperationKind kKinds[] = {OperationKind::kAllreduce, OperationKind::kAllreduce,
                                        OperationKind::kBroadcast, OperationKind::kAllgather};
    constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin,
                                 ReduceOp::kAverage};
    Call call;
    call.kind = kKinds[below(4)];
    call.integers = one_of(2);
    call.op = kOps[below(call.integers ? 3 : 4)];
    // Mostly a few lines; some that are staged, a few of several chunks.
    call.count = one_of(100) ? 70'000 + below(99) : one_of(30) ? 9'000 + below(99) : below(200);
    call.root = static_cast<int>(below(kRanks));
    call.salt = static_cast<int64_t>(below(1000));
    call.name = name;
    return call;
  }

  // Of a thread whose names begin so; without program order its synchronous calls have names too,
  // and one is all that may stand between submissions whose order the ranks do not share.
  std::vector<Round> rounds(const std::string& prefix, bool program_order, size_t calls_wanted) {
    std::vector<Round> all;
    for (size_t calls = 0; calls < calls_wanted;) {
      Round& round = all.emplace_back();
      const std::string half = prefix + (all.size() % 2 == 0 ? "even " : "odd ");
      for (size_t i = below(6); i > 0; --i)
        round.submitted.push_back(call(half + std::to_string(i)));
      for (size_t i = below(program_order ? 6 : 2); i > 0; --i) {
        Call one = call(program_order ? "" : half + "called");
        if (program_order && one_of(8)) one.kind = OperationKind::kBarrier;
        round.called.push_back(one);
      }
      calls += round.submitted.size() + round.called.size();
    }
    return all;
  }

 private:
  std::mt19937_64 random_;
};

template <class T>
T value(const Call& call, int rank, size_t i) {
  return static_cast<T>((call.salt + 7 * rank + static_cast<int64_t>(i % 13)) % 97);
}

template <class T>
T expected_at(const Call& call, size_t i) {
  if (call.kind == OperationKind::kBroadcast) return value<T>(call, call.root, i);
  T result = value<T>(call, 0, i);
  for (int k = 1; k < kRanks; ++k) {
    const T one = value<T>(call, k, i);
    if (call.op == ReduceOp::kMax)
      result = std::max(result, one);
    else if (call.op == ReduceOp::kMin)
      result = std::min(result, one);
    else
      result += one;
  }
  return call.op == ReduceOp::kAverage ? result / kRanks : result;
}

// One rank's part of one call: its memory, and whether what came is right.
template <class T>
struct Part {
  std::vector<T> data, gathered;

  void describe(const Call& call, int rank, Operation& operation) {
    constexpr DataType kType = std::is_same_v<T, float> ? DataType::kFloat32 : DataType::kInt64;
    const bool gathers = call.kind == OperationKind::kAllgather;
    data.resize(call.count + (gathers ? static_cast<size_t>(rank) : 0));
    for (size_t i = 0; i < data.size(); ++i) data[i] = value<T>(call, rank, i);
    operation.kind = call.kind;
    operation.root = call.root;
    operation.reduction.op = call.op;
    operation.result = {gathers ? nullptr : data.data(), gathers ? 0 : data.size(), kType};
    if (!gathers) return;
    operation.input = {data.data(), data.size(), kType};
    operation.allocate = [this](std::span<const uint64_t> counts) -> void* {
      size_t all = 0;
      for (const uint64_t count : counts) all += count;
      gathered.resize(all);
      return gathered.data();
    };
  }
  bool right(const Call& call) const {
    if (call.kind != OperationKind::kAllgather) {
      for (size_t i = 0; i < data.size(); ++i)
        if (data[i] != expected_at<T>(call, i)) return false;
      return true;
    }
    size_t at = 0;
    for (int k = 0; k < kRanks; ++k)
      for (size_t i = 0; i < call.count + static_cast<size_t>(k); ++i, ++at)
        if (at >= gathered.size() || gathered[at] != value<T>(call, k, i)) return false;
    return at == gathered.size();
  }
};

// One thread of one rank on its way through the rounds.
class Caller {
 public:
  Caller(Engine& engine, int rank, uint64_t seed, std::atomic<int>& wrong)
      : engine_(engine), rank_(rank), draw_(seed), wrong_(wrong) {}

  void run(const std::vector<Round>& rounds) {
    for (const Round& round : rounds) {
      std::vector<std::function<void()>> steps;
      for (const Call& call : round.submitted) steps.push_back([&] { submit(call); });
      // What an earlier round submitted on all ranks may be waited for anywhere.
      for (size_t i = 0; i < waiting_.size(); ++i) steps.push_back([this] { wait_for_any(); });
      draw_.shuffle(steps);
      size_t called = 0;
      for (const auto& step : steps) {
        while (called < round.called.size() && draw_.one_of(3)) run(round.called[called++]);
        step();
        if (draw_.one_of(50)) std::this_thread::yield();
      }
      while (called < round.called.size()) run(round.called[called++]);
      waiting_.swap(fresh_);
    }
    while (!waiting_.empty()) wait_for_any();
  }

 private:
  struct Pending {
    Call call;
    Part<float> floats;
    Part<int64_t> integers;
    std::shared_ptr<Work> work;
  };

  void describe(const Call& call, Pending& pending, Operation& operation) const {
    if (call.kind == OperationKind::kBarrier) return;
    if (call.integers)
      pending.integers.describe(call, rank_, operation);
    else
      pending.floats.describe(call, rank_, operation);
  }
  void check(const Call& call, const Pending& pending) {
    if (call.kind == OperationKind::kBarrier) return;
    wrong_ += !(call.integers ? pending.integers.right(call) : pending.floats.right(call));
  }

  std::unique_ptr<Pending> start(const Call& call) {
    auto pending = std::make_unique<Pending>();
    pending->call = call;
    auto submission = std::make_unique<Submission>();
    submission->name = call.name;
    describe(call, *pending, submission->operation);
    pending->work = engine_.submit(std::move(submission));
    return pending;
  }
  void submit(const Call& call) { fresh_.push_back(start(call)); }
  void wait_for_any() {
    std::swap(waiting_[draw_.below(waiting_.size())], waiting_.back());
    const std::unique_ptr<Pending> one = std::move(waiting_.back());
    waiting_.pop_back();
    one->work->wait();
    check(one->call, *one);
  }
  void run(const Call& call) {
    if (!call.name.empty()) {
      const std::unique_ptr<Pending> pending = start(call);
      pending->work->wait();
      return check(call, *pending);
    }
    Pending pending;
    Operation operation;
    describe(call, pending, operation);
    engine_.run(operation);
    check(call, pending);
  }

  Engine& engine_;
  const int rank_;
  Draw draw_;
  std::atomic<int>& wrong_;
  std::vector<std::unique_ptr<Pending>> waiting_, fresh_;  // of earlier rounds, of this one
};

}  // namespace

TEST_CASE("engine: 10,000 calls a rank, synchronous and asynchronous, from two threads each") {
  const auto hosts = GENERATE(values<Hosts>({{kRanks}, {2, 2}, {1, 3}}));
  CAPTURE(hosts);
  const size_t all = hosts.size() == 1 ? kCallsPerThread : kCallsBetweenHosts;
  const size_t calls = all / static_cast<size_t>(every(4));
  const uint64_t seed = random_seed();
  WARN("HVD_TEST_SEED=" << seed);  // also when what follows does not end
  const std::vector<Round> first = Draw(seed).rounds("first ", true, calls);
  const std::vector<Round> second = Draw(seed + 1).rounds("second ", false, calls);
  std::atomic<int> wrong{0};
  run_engines(hosts, [&](int rank, Engine& engine) {
    const uint64_t own = seed + 10 * (static_cast<uint64_t>(rank) + 1);
    std::exception_ptr error;
    std::jthread other([&] {
      try {
        Caller(engine, rank, own + 1, wrong).run(second);
      } catch (...) {
        error = std::current_exception();
      }
    });
    Caller(engine, rank, own, wrong).run(first);
    other.join();
    if (error) std::rethrow_exception(error);
  });
  CHECK(wrong == 0);
}
