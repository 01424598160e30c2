// Between hosts, what comes of an operation that is under way when the epoch breaks.
//
// One thread moves all ranks, in an order that is drawn: so a rank can be as far behind the others
// as it may ever be.
#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/extent.h"
#include "tests/support/ranks.h"
#include "tests/support/seed.h"

using namespace hvd;

namespace {

constexpr auto kPatience = std::chrono::seconds(20);

struct Setting {
  std::string name;
  std::vector<int> hosts;               // ranks of each
  CommunicatorFactory factory, second;  // of a further communicator of the same ranks
};

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const size_t ranks : {2u, 3u, 4u, 5u, 8u})
    all.push_back({"tcp", std::vector<int>(ranks, 1), tcp_factory(), tcp_factory(1)});
  for (const std::vector<int>& hosts : {std::vector{2, 2}, {3}, {1, 3}, {2, 1, 2}, {2, 2, 2}})
    all.push_back(
        {"hierarchical", hosts, hierarchical_factory(hosts), hierarchical_factory(hosts, true, 1)});
  for (Setting& setting : all) {
    setting.name += ", hosts of";
    for (int ranks : setting.hosts) setting.name += " " + std::to_string(ranks);
  }
  std::erase_if(all, [](const Setting& setting) {
    return std::accumulate(setting.hosts.begin(), setting.hosts.end(), 0) > ranks_max();
  });
  return all;
}

struct Shape {
  OperationKind kind;
  size_t count;
};
// Every way through an exchange, and what flows after it.
constexpr Shape kShapes[] = {
    {OperationKind::kBarrier, 0},        {OperationKind::kAllreduce, 3},
    {OperationKind::kAllreduce, 30'000}, {OperationKind::kAllreduce, 300'000},
    {OperationKind::kBroadcast, 5},      {OperationKind::kBroadcast, 90'000},
    {OperationKind::kAllgather, 20'000},
};

struct Call {
  Operation operation;
  std::vector<float> data, gathered;
};

// All ranks in one operation, of whom one dies. With a `beside`, all others are in one of that
// shape in a second communicator as well, which the one that dies has not come to.
class Play {
 public:
  Play(const Setting& setting, const Shape& shape, int victim, unsigned seed,
       const Shape* beside = nullptr)
      : ranks_(setting.hosts, setting.factory), victim_(victim), random_(seed) {
    for (int k = 0; k < ranks_.size(); ++k)
      if (beside != nullptr) second_.push_back(setting.second(ranks_.rank(k)));
    link_up();
    for (int k = 0; k < ranks_.size(); ++k) {
      calls_.push_back(make_call(shape, k));
      communicators(k)[0]->start(calls_.back()->operation);
    }
    for (int k = 0; k < ranks_.size() && beside != nullptr; ++k) {
      if (k == victim_) continue;
      calls_beside_.push_back(make_call(*beside, k));
      communicators(k)[1]->start(calls_beside_.back()->operation);
    }
  }

  // The one that is to die as fast as it can, another one for each of its steps, until it has
  // completed the operation.
  void run_until_done() {
    while (outcome(victim_) == Outcome::kPending) {
      while (progress(victim_)) continue;
      progress(drawn());
    }
  }
  // So many steps of anybody, at which the victim may be anywhere in it.
  void run(int steps) {
    for (int i = 0; i < steps && outcome(victim_) == Outcome::kPending; ++i) progress(drawn());
  }

  // As a process that ends, and its agent.
  void die() {
    for (int k = 0; k < ranks_.size(); ++k)
      behind_ += k != victim_ && outcome(k) == Outcome::kPending;
    died_ = Clock::now();
    ranks_.rank(victim_).communicator.reset();
    if (!second_.empty()) second_[size_t(victim_)].reset();
    ranks_.world().declare_dead(victim_);
  }
  // Each hears of it at some time, and goes the way that the engine goes: quiet is who has drained
  // all its communicators. False, if somebody never is.
  bool leave() {
    std::vector<int> left;
    for (int k = 0; k < ranks_.size(); ++k)
      if (k != victim_) left.push_back(k);
    std::vector<bool> told(size_t(ranks_.size()));
    for (const Deadline deadline = Deadline::in(kPatience); !left.empty();) {
      if (deadline.passed()) return false;
      const size_t at = random_() % left.size();
      const int k = left[at];
      if (!told[size_t(k)] && random_() % 4 == 0) {
        told[size_t(k)] = true;
        for (Communicator* one : communicators(k)) one->close();
      }
      progress(k);
      if (!std::ranges::all_of(communicators(k), &Communicator::drained)) continue;
      const World& world = ranks_.rank(k).peers->world();
      ranks_.rank(k).peers->block().rank(world.local_rank).quiet.store(1);
      left.erase(left.begin() + std::ptrdiff_t(at));
    }
    ended_ = Clock::now();
    for (int k = 0; k < ranks_.size(); ++k)
      for (Communicator* one : communicators(k))
        if (k != victim_) one->fail_rest();
    return true;
  }

  int behind() const { return behind_; }  // survivors that had not completed it at the death
  Clock::duration longest() const { return ended_ - died_; }
  int completed() const {
    int count = 0;
    for (int k = 0; k < ranks_.size(); ++k)
      count += k != victim_ && outcome(k) == Outcome::kComplete && is_right(k);
    return count;
  }
  int survivors() const { return ranks_.size() - 1; }

 private:
  std::vector<Communicator*> communicators(int k) {
    std::vector<Communicator*> all = {ranks_.rank(k).communicator.get()};
    if (!second_.empty()) all.push_back(second_[size_t(k)].get());
    return all;
  }
  bool progress(int k) {
    bool moved = false;
    for (Communicator* one : communicators(k)) moved |= one->progress();
    return moved;
  }
  void link_up() {  // by a barrier in every communicator
    std::vector<std::unique_ptr<Operation>> barriers;
    for (int k = 0; k < ranks_.size(); ++k)
      for (Communicator* one : communicators(k))
        one->start(*barriers.emplace_back(std::make_unique<Operation>()));
    const auto is_done = [](const auto& one) { return one->outcome == Outcome::kComplete; };
    while (!std::ranges::all_of(barriers, is_done))
      for (int k = 0; k < ranks_.size(); ++k) progress(k);
  }
  std::unique_ptr<Call> make_call(const Shape& shape, int k) const {
    auto call = std::make_unique<Call>();
    call->data.assign(shape.count, float(k));
    call->operation.kind = shape.kind;
    call->operation.result = {call->data.data(), shape.count, DataType::kFloat32};
    call->operation.input = {call->data.data(), shape.count, DataType::kFloat32};
    call->operation.reduction = {.op = ReduceOp::kSum};
    call->operation.root = ranks_.size() - 1;
    call->operation.allocate = [one = call.get()](std::span<const uint64_t> counts) {
      one->gathered.resize(std::accumulate(counts.begin(), counts.end(), uint64_t{0}));
      return one->gathered.data();
    };
    return call;
  }
  Outcome outcome(int k) const { return calls_[size_t(k)]->operation.outcome; }
  int drawn() { return int(random_() % unsigned(ranks_.size())); }
  bool is_right(int k) const {
    const Call& call = *calls_[size_t(k)];
    const int size = ranks_.size();
    const auto all = [](const std::vector<float>& data, float value) {
      return std::ranges::all_of(data, [&](float one) { return one == value; });
    };
    if (call.operation.kind == OperationKind::kAllreduce)
      return all(call.data, float(size * (size - 1)) / 2);
    if (call.operation.kind == OperationKind::kBroadcast) return all(call.data, float(size - 1));
    for (size_t i = 0; i < call.gathered.size(); ++i)
      if (const size_t rank = i / call.data.size(); call.gathered[i] != float(rank)) return false;
    return call.gathered.size() ==
           (call.operation.kind == OperationKind::kAllgather ? call.data.size() * size_t(size) : 0);
  }

  RankThreads ranks_;
  const int victim_;
  std::minstd_rand random_;
  std::vector<std::unique_ptr<Communicator>> second_;  // by rank
  std::vector<std::unique_ptr<Call>> calls_, calls_beside_;
  int behind_ = 0;
  TimePoint died_{}, ended_{};
};

}  // namespace

TEST_CASE("broken epoch: who dies with its part done fails the operation on nobody") {
  const unsigned seed = random_seed();
  for (const Setting& setting : settings()) {
    const int ranks = std::accumulate(setting.hosts.begin(), setting.hosts.end(), 0);
    int behind = 0;
    for (const Shape& shape : kShapes)
      for (int victim = 0; victim < ranks; ++victim) {
        INFO(setting.name << ", kind " << int(shape.kind) << " of " << shape.count << ", rank "
                          << victim << " dies, seed " << seed);
        Play play(setting, shape, victim, seed + unsigned(victim));
        play.run_until_done();
        play.die();
        REQUIRE(play.leave());
        behind += play.behind();
        CHECK(play.completed() == play.survivors());
      }
    INFO(setting.name);
    CHECK(behind > 0);  // else nothing was tried
  }
}

// By the ends of links and the words of who is quiet: without them each play would take as long as
// a living rank may be silent.
TEST_CASE("broken epoch: that the dead is waited for in vain is known at once, rank by rank") {
  const unsigned seed = random_seed();
  for (const Setting& setting : settings())
    for (const Shape& shape : kShapes) {
      auto quickest = Clock::duration::max();
      int behind = 0;
      for (unsigned k = 0; k < 6; ++k) {
        Play play(setting, shape, int(k) % int(setting.hosts.size()), seed + k);
        play.run(int(k * k));
        play.die();
        REQUIRE(play.leave());
        behind += play.behind();
        quickest = std::min(quickest, play.longest());
      }
      INFO(setting.name << ", kind " << int(shape.kind) << " of " << shape.count << ", seed "
                        << seed);
      CHECK(behind > 0);
      CHECK(quickest < std::chrono::milliseconds(100));
    }
}

// Whom a rank waits for in one communicator may wait for it in the other one: so that neither is
// quiet before the other one has gone on.
TEST_CASE("broken epoch: who gives up in one communicator holds nobody who waits in another") {
  const unsigned seed = random_seed();
  const Shape beside = kShapes[1];
  for (const Setting& setting : settings())
    for (const Shape& shape : kShapes) {
      const int ranks = std::accumulate(setting.hosts.begin(), setting.hosts.end(), 0);
      int behind = 0;
      for (int victim = 0; victim < ranks; ++victim)
        for (const int steps : {0, ranks, 3 * ranks, 8 * ranks, 20 * ranks}) {
          INFO(setting.name << ", kind " << int(shape.kind) << " of " << shape.count << ", rank "
                            << victim << " dies after " << steps << " steps, seed " << seed);
          Play play(setting, shape, victim, seed + unsigned(steps), &beside);
          play.run(steps);
          play.die();
          REQUIRE(play.leave());
          behind += play.behind();
        }
      INFO(setting.name << ", kind " << int(shape.kind) << " of " << shape.count << ", seed "
                        << seed);
      CHECK(behind > 0);
    }
}
