// In a world of several hosts a rank dies at its k-th message, store or sum, for all k: every
// survivor's wait ends, no result is wrong, survivors' last completed operations differ by at most
// one, and once a survivor may throw nobody touches its memory any more.
//
// Ranks are threads here. The one that is to die throws out of progress() and touches nothing any
// more; its links end with it, or stay open, and its agent says that it is dead.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "collectives/schedule.h"
#include "hvd/error.h"
#include "runtime/base/fault_point.h"
#include "tests/support/catch.h"
#include "tests/support/extent.h"
#include "tests/support/memory_pattern.h"
#include "tests/support/ranks.h"

using namespace hvd;

namespace {

// What every rank does, in order, each waited for: every algorithm, then several at once.
struct Step {
  OperationKind kind;
  size_t count;
  bool arena = false;
  bool waits = true;
};
constexpr size_t kArenaBytes = 2 << 20;
constexpr Step kSteps[] = {
    {OperationKind::kBarrier, 0},
    {OperationKind::kAllreduce, 3},
    {OperationKind::kAllreduce, 30'000},
    {OperationKind::kAllreduce, 300'000},
    {OperationKind::kAllreduce, 60'000, true},
    {OperationKind::kBroadcast, 5},
    {OperationKind::kBroadcast, 90'000},
    {OperationKind::kBroadcast, 60'000, true},
    {OperationKind::kAllgather, 30'000},
    {OperationKind::kAllreduce, 40'000, false, false},
    {OperationKind::kAllreduce, 2, true, false},
    {OperationKind::kAllgather, 10, false, false},
    {OperationKind::kAllreduce, 70'000, true, false},
    {OperationKind::kAllreduce, 525'000},
};

enum class End {
  kLinksEnd,   // as those of a process
  kLinksStay,  // a child of the dead process holds them open: only the agent's word tells
};

struct Item {
  Operation operation;
  std::vector<float> own, gathered;
  float* data = nullptr;
};

struct Setting {
  const char* name;
  std::vector<int> hosts;  // ranks of each
  CommunicatorFactory factory;

  int ranks() const { return std::accumulate(hosts.begin(), hosts.end(), 0); }
};

Setting tcp_setting(int ranks) {
  return {"tcp", std::vector<int>(static_cast<size_t>(ranks), 1), tcp_factory()};
}

Setting hierarchical_setting(std::vector<int> hosts) {
  return {"hierarchical", hosts, hierarchical_factory(hosts)};
}

float value(int rank, size_t step, size_t i) {
  return static_cast<float>((static_cast<size_t>(rank) * 31 + step * 17 + i) % 101);
}

// Results are looked at in the end, so each tensor has a place of its own.
void prepare(const Rank& rank, std::byte* arena, size_t step, Item& item) {
  const Step& s = kSteps[step];
  item.own.resize(s.count);
  item.data = s.arena ? reinterpret_cast<float*>(arena) + step * 36'000 : item.own.data();
  for (size_t i = 0; i < s.count; ++i) item.data[i] = value(rank.rank, step, i);
  Operation& operation = item.operation;
  operation.kind = s.kind;
  operation.result = {item.data, s.count, DataType::kFloat32};
  operation.input = {item.data, s.count, DataType::kFloat32};
  operation.reduction = {.op = ReduceOp::kSum};
  operation.root = rank.size - 1;
  operation.allocate = [&item](std::span<const uint64_t> counts) {
    uint64_t sum = 0;
    for (uint64_t count : counts) sum += count;
    item.gathered.resize(sum);
    return item.gathered.data();
  };
}

// Sums of small whole numbers: exact in any order.
void verify(const Rank& rank, size_t step, const Item& item) {
  const Step& s = kSteps[step];
  for (size_t i = 0; i < s.count; ++i) {
    float expected = value(rank.rank, step, i);
    if (s.kind == OperationKind::kBroadcast) expected = value(rank.size - 1, step, i);
    if (s.kind == OperationKind::kAllreduce) {
      expected = 0;
      for (int k = 0; k < rank.size; ++k) expected += value(k, step, i);
    }
    if (item.data[i] != expected)
      throw std::runtime_error("step " + std::to_string(step) + ": wrong result");
    for (int k = 0; s.kind == OperationKind::kAllgather && k < rank.size; ++k)
      if (item.gathered[static_cast<size_t>(k) * s.count + i] != value(k, step, i))
        throw std::runtime_error("step " + std::to_string(step) + ": wrong part");
  }
}

// One world in which a rank dies at its k-th fault point.
class Drama {
 public:
  Drama(const Setting& setting, int victim, long k, End end)
      : ranks_(setting.hosts, setting.factory),
        victim_(victim),
        k_(k),
        end_(end),
        completed_(static_cast<size_t>(setting.ranks())) {}

  // False when there was no k-th point any more.
  bool play() {
    ranks_.run([this](Rank& rank) { live(rank); });
    fault::arm(nullptr);
    size_t least = std::size(kSteps), most = 0;
    for (int k = 0; k < ranks_.size(); ++k) {
      if (died_ && k == victim_) continue;
      least = std::min(least, completed_[static_cast<size_t>(k)]);
      most = std::max(most, completed_[static_cast<size_t>(k)]);
      if (changed_bytes(ranks_.rank(k).own_memory(1)) != 0)
        throw std::runtime_error("written after the end of the epoch");
    }
    if (most > least + 1) throw std::runtime_error("survivors are operations apart");
    if (!died_ && least < std::size(kSteps)) throw std::runtime_error("failed, and nobody died");
    return died_;
  }
  // From the death to the last survivor's end.
  std::chrono::nanoseconds longest() const { return std::chrono::nanoseconds(longest_.load()); }

 private:
  void live(Rank& rank) {
    const bool dies = rank.rank == victim_;
    std::vector<std::unique_ptr<Item>> items;
    try {
      if (dies) fault::arm_here(("*:" + std::to_string(k_) + ":throw").c_str());
      act(rank, items);
      if (dies) fault::arm_here(nullptr);
      if (rank.communicator->idle()) {
        rank.peers->block()
            .rank(rank.peers->world().local_rank)
            .quiet.store(1, std::memory_order_release);
      } else {
        rank.leave_broken_epoch();
        const auto now = Clock::now().time_since_epoch().count();
        for (int64_t was = longest_; now - death_ > was;)
          if (longest_.compare_exchange_weak(was, now - death_)) break;
      }
    } catch (const Error&) {
      if (!dies) throw;
      // This thread touches nothing any more.
      died_ = true;
      death_ = Clock::now().time_since_epoch().count();
      if (end_ == End::kLinksEnd) rank.communicator.reset();
      ranks_.world().declare_dead(rank.rank);
      return;
    }
    size_t& completed = completed_[static_cast<size_t>(rank.rank)];
    for (; completed < items.size(); ++completed) {
      if (items[completed]->operation.outcome != Outcome::kComplete) break;
      verify(rank, completed, *items[completed]);
    }
    for (size_t step = completed; step < items.size(); ++step)
      if (items[step]->operation.outcome != Outcome::kFailedUndefined)
        throw std::runtime_error("step " + std::to_string(step) + ": not failed");
    // Whatever is left of the epoch, nobody writes this rank's memory any more.
    write_pattern(rank.own_memory(1));
  }

  // Until the end, or until the epoch is broken.
  void act(Rank& rank, std::vector<std::unique_ptr<Item>>& items) {
    Operation grow{.kind = OperationKind::kSegment,
                   .segment = 1,
                   .segment_bytes = kArenaBytes,
                   .populate_bytes = kArenaBytes / 4};
    rank.communicator->start(grow);
    // It is on this stack, so the epoch ends here.
    if (!wait(rank)) return rank.leave_broken_epoch();
    std::byte* arena = rank.arena.segment(1)->own();
    for (size_t step = 0; step < std::size(kSteps); ++step) {
      items.push_back(std::make_unique<Item>());
      prepare(rank, arena, step, *items.back());
      rank.communicator->start(items.back()->operation);
      if (kSteps[step].waits && !wait(rank)) return;
    }
  }

  // False when the epoch is broken.
  static bool wait(Rank& rank) {
    const ControlBlock& block = rank.peers->block();
    rank.advance_until([&] {
      return rank.communicator->idle() || block.trouble.load(std::memory_order_acquire) != 0;
    });
    return rank.communicator->idle();
  }

  RankThreads ranks_;
  const int victim_;
  const long k_;
  const End end_;
  std::atomic<bool> died_{false};
  std::atomic<int64_t> death_{0}, longest_{0};
  std::vector<size_t> completed_;  // by rank, written by its thread
};

// ThreadSanitizer looks at orders, not at outcomes, and takes ten times as long.
#if defined(__SANITIZE_THREAD__)
const long kEvery = thorough() ? 13 : 29;
#elif defined(__SANITIZE_ADDRESS__)
const long kEvery = thorough() ? 3 : 7;
#else
const long kEvery = thorough() ? 1 : 3;
#endif

// From a death until nobody waits any more. Of a machine that does other things, too: what is late
// is played again, and not late each time.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::chrono::seconds kEndLimit{10};
#else
constexpr std::chrono::seconds kEndLimit{1};
#endif
constexpr int kPlaysMax = 3;

// Every k-th point, `stride` apart, until there are none left. Returns the first at which nobody
// dies.
long die_everywhere(const Setting& setting, int victim, long stride, End end) {
  long k = 1;
  for (bool died = true; died; k += stride) {
    INFO(setting.name << ", " << setting.ranks() << " ranks on " << setting.hosts.size()
                      << " hosts, rank " << victim << " at point " << k);
    auto longest = std::chrono::nanoseconds::max();
    for (int play = 0; play < kPlaysMax && longest >= kEndLimit; ++play) {
      Drama drama(setting, victim, k, end);
      REQUIRE_NOTHROW(died = drama.play());
      longest = drama.longest();
    }
    CHECK(longest < kEndLimit);
  }
  return k - stride;
}

}  // namespace

TEST_CASE("tcp death: the steps take every way that a sum can go") {
  for (const int ranks : {2, 3, 4, 8}) {
    std::set<AllreduceWay> ways;
    for (const Step& step : kSteps)
      if (step.kind == OperationKind::kAllreduce)
        ways.insert(allreduce_way(step.count, DataType::kFloat32, ranks));
    CHECK(ways.size() == (ranks < 4 ? 2 : 3));
  }
}

TEST_CASE("tcp death: with two and three ranks, here and there, in the long run everywhere") {
  const int size = GENERATE(2, 3);
  const End end = GENERATE(End::kLinksEnd, End::kLinksStay);
  for (int victim = 0; victim < size; ++victim)
    CHECK(die_everywhere(tcp_setting(size), victim, thorough() ? kEvery : 5 * kEvery, end) > 30);
}

TEST_CASE("tcp death: with four and eight ranks, here and there, in the long run everywhere") {
  const int size = GENERATE(4, 8);
  if (size > ranks_max()) return;
  for (int victim = 0; victim < size; victim += thorough() ? 1 : 3)
    CHECK(die_everywhere(tcp_setting(size), victim, thorough() ? kEvery : 7 * kEvery,
                         End::kLinksEnd) > 30);
}

TEST_CASE("hierarchical death: on two hosts, here and there, in the long run everywhere") {
  const Setting setting = GENERATE(hierarchical_setting({2, 2}), hierarchical_setting({1, 3}));
  const End end = GENERATE(End::kLinksEnd, End::kLinksStay);
  for (int victim = 0; victim < setting.ranks(); ++victim)
    CHECK(die_everywhere(setting, victim, (thorough() ? 1 : 17) * kEvery, end) > 50);
}

TEST_CASE(
    "hierarchical death: on one host, and on three, here and there, in the long run everywhere") {
  const Setting setting = GENERATE(hierarchical_setting({3}), hierarchical_setting({2, 2, 2}));
  if (setting.ranks() > ranks_max()) return;
  for (int victim = 0; victim < setting.ranks(); victim += thorough() ? 1 : 2)
    CHECK(die_everywhere(setting, victim, (thorough() ? 1 : 13) * kEvery, End::kLinksEnd) > 50);
}
