// A rank dies at the k-th fault point, for all k: its survivors agree on everything.
//
// Ranks are threads here. The one that is to die throws out of progress(), touches nothing any more
// and is declared dead, or is found out: somebody gives up and the agent asks. In some plays a rank
// is ahead of the others, which hand their slices over to it.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>

#include "collectives/shared_memory/words.h"
#include "hvd/error.h"
#include "runtime/base/fault_point.h"
#include "tests/collectives/reference.h"
#include "tests/support/catch.h"
#include "tests/support/extent.h"
#include "tests/support/memory_pattern.h"
#include "tests/support/ranks.h"

using namespace hvd;

namespace {

constexpr size_t kArenaBytes = 1 << 20;

[[noreturn]] void fail(size_t step, const char* what) {
  throw std::runtime_error("step " + std::to_string(step) + ": " + what);
}

// What every rank does, in order; a group is started at once and waited for together.
struct Step {
  OperationKind kind;
  size_t count;
  bool arena;
  int root = 0;
  bool last_of_group = false;
  bool refused = false;  // the last rank does it with one element less
};
constexpr Step kSteps[] = {
    {OperationKind::kBarrier, 0, false, 0, true},
    {OperationKind::kAllreduce, 3, false, 0, true},
    {OperationKind::kAllreduce, 40, false, 0, true, true},  // several lines
    {OperationKind::kAllreduce, 9000, true, 0, true},
    {OperationKind::kAllreduce, 40000, false, 0, true},
    {OperationKind::kBroadcast, 100, false, 1, true},
    {OperationKind::kBroadcast, 40000, true, 1, true},
    {OperationKind::kBroadcast, 40000, false, 0, true},
    {OperationKind::kAllgather, 20000, true, 0, true},
    {OperationKind::kAllgather, 20000, false, 0, true},
    // Under way together, more than there are slots.
    {OperationKind::kAllreduce, 9000, true},
    {OperationKind::kAllreduce, 300, false},
    {OperationKind::kAllreduce, 20000, true},
    {OperationKind::kAllreduce, 20000, true},
    {OperationKind::kAllgather, 50, false},
    {OperationKind::kAllreduce, 5, false},
    {OperationKind::kAllreduce, 30000, false},
    {OperationKind::kAllreduce, 6, false},
    {OperationKind::kBarrier, 0, false},
    {OperationKind::kBroadcast, 9000, true, 1},
    {OperationKind::kAllreduce, 7, false, 0, true},
};
constexpr size_t kCount = std::size(kSteps);
constexpr size_t kTogether = 10;  // the first of those

// One rank's side of one step.
struct Item {
  Operation operation;
  std::vector<float> own, gathered;
  float* data = nullptr;
  std::vector<float> before;
};

float value(int rank, size_t step, size_t i) {
  return static_cast<float>((static_cast<size_t>(rank) * 131 + step * 17 + i) % 1009) * 0.37f;
}

void prepare(Rank& rank, std::byte* arena, size_t step, Item& item) {
  const Step& s = kSteps[step];
  item.own.resize(s.count);
  item.data = s.arena ? reinterpret_cast<float*>(arena) + step % 5 * 45000 : item.own.data();
  for (size_t i = 0; i < s.count; ++i) item.data[i] = value(rank.rank, step, i);
  item.before.assign(item.data, item.data + s.count);
  Operation& operation = item.operation;
  operation.kind = s.kind;
  operation.reduction = {.op = ReduceOp::kAverage};
  operation.root = s.root;
  const size_t less = s.refused && rank.rank == rank.size - 1 ? 1 : 0;
  operation.result = {item.data, s.count - less, DataType::kFloat32};
  operation.input = {item.data, s.count, DataType::kFloat32};
  operation.allocate = [&item](std::span<const uint64_t> counts) {
    size_t sum = 0;
    for (uint64_t count : counts) sum += count;
    item.gathered.resize(sum);
    return item.gathered.data();
  };
}

// Right results when complete, whole inputs when refused or untouched.
void verify(const Rank& rank, size_t step, const Item& item, Outcome outcome) {
  const Step& s = kSteps[step];
  const bool untouched = outcome == Outcome::kFailedUntouched || outcome == Outcome::kRefused;
  if (untouched && !std::equal(item.before.begin(), item.before.end(), item.data))
    fail(step, "touched");
  if (s.refused && outcome == Outcome::kComplete) fail(step, "summed what differs");
  if (outcome != Outcome::kComplete) return;
  for (size_t i = 0; i < s.count; ++i) {
    float expected = value(rank.rank, step, i);
    if (s.kind == OperationKind::kBroadcast) expected = value(s.root, step, i);
    if (s.kind == OperationKind::kAllreduce) {
      expected = value(0, step, i);
      for (int k = 1; k < rank.size; ++k) expected += value(k, step, i);
      expected *= static_cast<float>(1.0 / rank.size);
    }
    if (item.data[i] != expected) fail(step, "wrong result");
    for (int k = 0; s.kind == OperationKind::kAllgather && k < rank.size; ++k)
      if (item.gathered[static_cast<size_t>(k) * s.count + i] != value(k, step, i))
        fail(step, "wrong part");
  }
}

enum class End {
  kDeclared,  // the agent sees the death
  kFoundOut,  // nobody does: a survivor gives up waiting, the agent asks, and declares it then
};

constexpr int kNobody = -1;

// One world in which a rank dies at its k-th fault point.
class Drama {
 public:
  // Where many operations are under way together, `ahead` enters what it can before the others.
  Drama(int size, int victim, long k, End end, int ahead)
      : ranks_(size, shared_memory_factory(true)),
        victim_(victim),
        k_(k),
        end_(end),
        ahead_(ahead) {
    outcomes_.resize(static_cast<size_t>(size));
  }

  // Ranks of whose last operations one was.
  int handed_over() const { return handed_over_; }
  // False when there was no k-th point any more.
  bool play() {
    ranks_.run([this](Rank& rank) { live(rank); });
    fault::arm(nullptr);
    for (int k = 0; k < ranks_.size(); ++k) {
      if (died_ && k == victim_) continue;
      const std::vector<Outcome>& mine = outcomes_[static_cast<size_t>(k)];
      const std::vector<Outcome>& first = outcomes_[victim_ == 0 && died_ ? 1 : 0];
      for (size_t step = 0; step < kCount; ++step)
        if (mine[step] != first[step]) fail(step, "survivors disagree");
      if (!died_ && mine.back() != Outcome::kComplete) fail(kCount - 1, "failed, and nobody died");
      if (changed_bytes(ranks_.rank(k).own_memory(1)) != 0)
        fail(kCount, "written after the end of the epoch");
    }
    return died_;
  }

 private:
  void live(Rank& rank) {
    std::vector<std::unique_ptr<Item>> items;
    const bool dies = rank.rank == victim_;
    try {
      if (dies) fault::arm_here(("*:" + std::to_string(k_) + ":throw").c_str());
      act(rank, items);
      leave(rank);
    } catch (const Error&) {
      if (!dies) throw;
      // This thread touches nothing any more.
      died_ = true;
      if (end_ == End::kDeclared) return ranks_.host().declare_dead(rank.rank);
      ranks_.host().stop(rank.rank);
      silent_ = true;
      return;
    }
    std::vector<Outcome>& mine = outcomes_[static_cast<size_t>(rank.rank)];
    for (size_t step = 0; step < kCount; ++step) {
      mine.push_back(step < items.size() ? items[step]->operation.outcome.load()
                                         : Outcome::kFailedUntouched);
      if (step < items.size() && mine.back() != Outcome::kComplete)
        verify(rank, step, *items[step], mine.back());
    }
    if (hands_over(rank)) ++handed_over_;
    // Whatever is left of the epoch, nobody writes this rank's memory any more.
    write_pattern(rank.own_memory(1));
  }

  // As shutdown(), or as after a failure.
  static void leave(Rank& rank) {
    if (!rank.communicator->idle()) return rank.leave_broken_epoch();
    rank.communicator->close();
    rank.peers->block().rank(rank.rank).quiet.store(1, std::memory_order_release);
    ring_sleepers(*rank.peers);
  }

  // Until the end, or until the epoch is broken.
  void act(Rank& rank, std::vector<std::unique_ptr<Item>>& items) {
    std::byte* arena = nullptr;
    Operation grow{.kind = OperationKind::kSegment,
                   .segment = 1,
                   .segment_bytes = kArenaBytes,
                   .populate_bytes = kArenaBytes / 4};
    rank.communicator->start(grow);
    if (!wait(rank)) return leave(rank);
    arena = rank.arena.segment(1)->own();
    for (size_t step = 0, group = 0; step < kCount; ++step) {
      if (step == kTogether && rank.rank != ahead_ && ahead_ != kNobody) stay_behind(rank);
      items.push_back(std::make_unique<Item>());
      prepare(rank, arena, step, *items.back());
      rank.communicator->start(items.back()->operation);
      if (!kSteps[step].last_of_group) continue;
      if (step > kTogether && rank.rank == ahead_) go_ahead(rank);
      if (!wait(rank)) return;
      for (; group <= step; ++group) {
        const Outcome due = kSteps[group].refused ? Outcome::kRefused : Outcome::kComplete;
        if (items[group]->operation.outcome.load() != due) fail(group, "not as it is due");
        verify(rank, group, *items[group], due);
      }
    }
  }

  static bool hands_over(const Rank& rank) {
    const auto& words = *reinterpret_cast<CommunicatorWords*>(rank.arena.segment(0)->own());
    return std::any_of(std::begin(words.lines), std::end(words.lines), [](const auto& slot) {
      OperationEntry said;
      std::memcpy(&said, slot[0].data, sizeof said);
      return said.place == Place::kArena && said.handed_over;
    });
  }
  void go_ahead(Rank& rank) {
    constexpr uint64_t kAll = 1 + kTogether + kOperationSlots;  // the segment was the first
    rank.advance_until([&] { return rank.communicator->entered() == kAll || is_over(rank); });
    is_ahead_ = true;
  }
  void stay_behind(Rank& rank) {
    rank.advance_until([&] { return is_ahead_ || died_ || is_over(rank); });
  }
  bool is_over(Rank& rank) const {
    return silent_ || rank.peers->block().trouble.load(std::memory_order_acquire) != 0;
  }

  // True when everything started is complete, false when the epoch is broken.
  bool wait(Rank& rank) {
    ControlBlock& block = rank.peers->block();
    rank.advance_until([&] {
      if (silent_ && block.trouble.load(std::memory_order_acquire) == 0) rank.communicator->abort();
      return rank.communicator->idle() || block.trouble.load(std::memory_order_acquire) != 0;
    });
    return rank.communicator->idle();
  }

  RankThreads ranks_;
  const int victim_;
  const long k_;
  const End end_;
  const int ahead_;
  std::atomic<bool> died_{false}, silent_{false}, is_ahead_{false};
  std::atomic<int> handed_over_{0};
  std::vector<std::vector<Outcome>> outcomes_;  // by rank, written by its thread
};

// ThreadSanitizer looks at orders, not at outcomes, and takes ten times as long.
#if defined(__SANITIZE_THREAD__)
constexpr long kEvery = 7;
#else
constexpr long kEvery = 1;
#endif

// Every k-th point, `stride` apart, until there are none left; with nobody ahead, the one that dies
// and the one that it hands over to, or in the short run with these in turn. Returns the last k.
long die_everywhere(int size, int victim, long stride, End end) {
  const std::array leaders{kNobody, victim, (victim ^ 1) < size ? victim ^ 1 : 0};
  const long turns = std::ssize(leaders);
  long k = 0;
  int handed_over = 0;
  // Who hands over passes fewer points.
  for (long play = 0, lived = 0; lived < turns; ++play) {
    k = 1 + (thorough() ? play / turns : play) * stride;
    const int ahead = leaders[static_cast<size_t>(play % turns)];
    INFO(size << " ranks, rank " << victim << " at point " << k << ", ahead " << ahead);
    Drama drama(size, victim, k, end, ahead);
    bool died = true;
    REQUIRE_NOTHROW(died = drama.play());
    lived = died ? 0 : lived + 1;
    handed_over += drama.handed_over();
  }
  CHECK(handed_over > 0);
  return k;
}

}  // namespace

TEST_CASE("death: at every point of every operation, survivors agree") {
  const int size = GENERATE(2, 3);
  for (int victim = 0; victim < size; ++victim)
    CHECK(die_everywhere(size, victim, kEvery, End::kDeclared) > 100);
}

TEST_CASE("death: with four ranks, at every fifth point, in the long run at each") {
  for (int victim = 0; victim < 4; ++victim) {
    if (!thorough() && victim % 3 != 0) continue;
    CHECK(die_everywhere(4, victim, thorough() ? kEvery : 5 * kEvery, End::kDeclared) > 100);
  }
}

TEST_CASE("death: a rank that falls silent is given up on, and survivors agree") {
  for (int victim : {0, 1})
    CHECK(die_everywhere(3, victim, thorough() ? kEvery : 11 * kEvery, End::kFoundOut) > 100);
}
