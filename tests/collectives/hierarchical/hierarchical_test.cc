// The communicator where ranks share hosts: words of long ago, and memory without staging.
#include <algorithm>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "collectives/hierarchical/hierarchical_communicator.h"
#include "tests/collectives/calls.h"
#include "tests/support/catch.h"
#include "tests/support/extent.h"
#include "tests/support/ranks.h"

using namespace hvd;

namespace {

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

// Every rank's next operation is number `next`, and its words are those of `age` operations ago.
void start_with_old_words(RankThreads& ranks, uint64_t next, uint64_t age) {
  for (int k = 0; k < ranks.size(); ++k) {
    Rank& rank = ranks.rank(k);
    dynamic_cast<HierarchicalCommunicator&>(*rank.communicator).start_at(next - 1);
    auto& words = *reinterpret_cast<HostWords*>(rank.arena.segment(0)->own());
    if (age == 0) continue;  // never
    for (auto* word :
         {&words.entries[0].word, &words.entries[1].word, &words.verdict, &words.heard,
          &words.brought, &words.summed, &words.given, &words.taken, &words.done, &words.told})
      *word = stamp(next - age);
  }
}

// One thread moves all in turn, so that each rank looks at words that the others have not written.
void advance_all(RankThreads& ranks, const std::vector<std::unique_ptr<Call>>& calls) {
  ranks.rank(0).advance_until([&] {
    for (int k = 1; k < ranks.size(); ++k) ranks.rank(k).communicator->progress();
    return std::ranges::all_of(
        calls, [](const auto& call) { return call->operation.outcome != Outcome::kPending; });
  });
}

}  // namespace

TEST_CASE("hierarchical: what was never said, or long ago, is not taken for said") {
  const uint64_t half = uint64_t{1} << 31;
  const uint64_t next =
      GENERATE_COPY(values({uint64_t{1}, half, half + 1, 2 * half - 2, 2 * half, 3 * half}));
  const uint64_t age = GENERATE_COPY(values({uint64_t{0}, half + 1}));
  const auto hosts = GENERATE(values<std::vector<int>>({{2, 2}, {3}, {1, 3}}));
  if (every(2) > 1 && hosts != std::vector{2, 2}) return;  // one thread moves all
  CAPTURE(next, age, hosts);
  RankThreads ranks(hosts, hierarchical_factory(hosts));
  start_with_old_words(ranks, next, age);
  const auto n = static_cast<size_t>(ranks.size());
  for (const Shape& shape : {kShapes[2], kShapes[0], kShapes[4], kShapes[2]}) {
    std::vector<std::unique_ptr<Call>> calls;
    for (int k = 0; k < ranks.size(); ++k) {
      calls.push_back(make_call(ranks.rank(k), shape));
      ranks.rank(k).communicator->start(calls.back()->operation);
    }
    advance_all(ranks, calls);
    const bool sums = shape.kind == OperationKind::kAllreduce;
    for (const auto& call : calls) {
      CHECK(call->operation.outcome == Outcome::kComplete);
      bool right = true;
      for (size_t i = 0; i < shape.count; ++i)
        right &= call->data[i] == static_cast<float>(sums ? i % 97 * n + n * (n - 1) / 2 : i % 97);
      CHECK(right);
    }
  }
}

TEST_CASE("hierarchical: also where words are old or half a number is zero, all sides are told") {
  const uint64_t next = uint64_t{1} << 32;
  const uint64_t age = GENERATE_COPY(values({uint64_t{0}, next / 2 + 1}));
  const std::vector<int> hosts = {2, 2};
  RankThreads ranks(hosts, hierarchical_factory(hosts));
  start_with_old_words(ranks, next, age);
  std::vector<std::unique_ptr<Call>> calls;
  for (int k = 0; k < ranks.size(); ++k) {
    calls.push_back(make_call(ranks.rank(k), kShapes[k == 1 ? 3 : 0]));
    ranks.rank(k).communicator->start(calls.back()->operation);
    ranks.rank(k).communicator->progress();
    if (k == 1) CHECK(ranks.rank(1).communicator->missing_ranks() == std::vector{2, 3});
  }
  advance_all(ranks, calls);
  for (const auto& call : calls) {
    CHECK(call->operation.outcome == Outcome::kRefused);
    CHECK_THAT(call->operation.error, Catch::Contains("rank 0 called allreduce float32 [3] Sum, "
                                                      "rank 1 called broadcast float32 [7] from"));
  }
}

TEST_CASE("hierarchical: without staging, what lies in the arena is summed, sent and gathered") {
  const std::vector<int> hosts =
      GENERATE(std::vector{2, 2}, std::vector{1, 3}, std::vector{2, 4}, std::vector{3});
  if (hosts == std::vector{2, 4} && ranks_max() < 6) return;
  RankThreads ranks(hosts, hierarchical_factory(hosts, false));
  ranks.run([](Rank& rank) {
    auto* data = reinterpret_cast<float*>(rank.add_segment(4 << 20));
    const auto n = static_cast<size_t>(rank.size);
    for (const size_t count : {3, 2'000, 70'000, 500'000 / every(3)}) {
      Operation sum{.kind = OperationKind::kAllreduce,
                    .result = {data, count, DataType::kFloat32},
                    .reduction = {.op = ReduceOp::kSum}};
      for (size_t i = 0; i < count; ++i)
        data[i] = static_cast<float>(i % 97 + static_cast<size_t>(rank.rank));
      rank.complete(sum);
      for (size_t i = 0; i < count; ++i)
        expect(data[i] == static_cast<float>(i % 97 * n) + static_cast<float>(n * (n - 1)) / 2,
               "wrong sum");
      Operation sent{.kind = OperationKind::kBroadcast,
                     .result = {data, count, DataType::kFloat32},
                     .root = rank.size - 1};
      std::fill(data, data + count, static_cast<float>(rank.rank));
      rank.complete(sent);
      expect(std::all_of(data, data + count, [&](float x) { return x == rank.size - 1; }),
             "wrong broadcast");
      std::vector<float> gathered;
      std::fill(data, data + count, static_cast<float>(rank.rank));
      Operation gather{.kind = OperationKind::kAllgather,
                       .input = {data, count, DataType::kFloat32},
                       .allocate = [&](std::span<const uint64_t>) {
                         gathered.resize(n * count);
                         return gathered.data();
                       }};
      rank.complete(gather);
      for (size_t i = 0; i < gathered.size(); ++i) {
        const size_t from = i / count;
        expect(gathered[i] == static_cast<float>(from), "wrong part");
      }
    }
  });
}
