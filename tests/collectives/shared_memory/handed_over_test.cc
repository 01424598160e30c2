// Who sums a slice of an allreduce in the arena: its rank, or a partner that is far ahead of it.
#include <algorithm>
#include <functional>
#include <latch>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/base/fault_point.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"

using namespace hvd;

namespace {

constexpr size_t kCount = 40'000;  // several blocks a slice
constexpr size_t kOperations = 3;

void ask_for_sum(Operation& operation, float* data) {
  operation.kind = OperationKind::kAllreduce;
  operation.result = {data, kCount, DataType::kFloat32};
  operation.reduction = {.op = ReduceOp::kSum};
}

// Rank 0 has entered `ahead` operations when the others enter their first. What rank 1 says when it
// must not sum in that one; empty: it did not. All results are looked at.
std::string sums_of_rank_1(int ranks, size_t ahead, bool disjoint = true) {
  RankThreads threads(ranks, shared_memory_factory(disjoint));
  std::latch ahead_entered(1), rank_1_entered(1);
  std::string said;
  threads.run([&](Rank& rank) {
    auto* memory = reinterpret_cast<float*>(rank.add_segment(kOperations * kCount * sizeof(float)));
    std::fill_n(memory, kOperations * kCount, static_cast<float>(rank.rank + 1));
    std::vector<Operation> operations(kOperations);
    for (size_t i = 0; i < kOperations; ++i) ask_for_sum(operations[i], memory + i * kCount);
    const auto complete = [&](Operation& one) {
      rank.advance_until([&] { return one.outcome != Outcome::kPending; });
    };
    const uint64_t before = rank.communicator->entered();
    if (rank.rank == 0) {
      for (size_t i = 0; i < ahead; ++i) rank.communicator->start(operations[i]);
      rank.advance_until([&] { return rank.communicator->entered() - before == ahead; });
      ahead_entered.count_down();
      rank_1_entered.wait();
    } else {
      ahead_entered.wait();
      if (rank.rank == 1) fault::arm_here("collective_slice:1:throw");
      const auto advance = [&](const std::function<bool()>& done) {
        try {
          rank.advance_until(done);
        } catch (const std::exception& error) {
          said = error.what();
          fault::arm_here(nullptr);
        }
      };
      rank.communicator->start(operations[0]);
      advance([&] { return rank.communicator->entered() > before; });
      if (rank.rank == 1) rank_1_entered.count_down();
      advance([&] { return operations[0].outcome != Outcome::kPending; });
      if (rank.rank == 1) fault::arm_here(nullptr);
    }
    for (size_t i = rank.rank == 0 ? ahead : 1; i < kOperations; ++i)
      rank.communicator->start(operations[i]);
    for (Operation& one : operations) complete(one);
    const int sum = ranks * (ranks + 1) / 2;
    if (!std::all_of(memory, memory + kOperations * kCount,
                     [&](float one) { return one == static_cast<float>(sum); }))
      throw std::runtime_error("wrong sum");
  });
  return said;
}

}  // namespace

TEST_CASE("handed over: a partner that is two operations ahead sums the slice, too") {
  for (const int ranks : {2, 3, 4}) {
    CAPTURE(ranks);
    CHECK(sums_of_rank_1(ranks, 3).empty());
  }
}

TEST_CASE("handed over: a rank that is less far behind sums its own slice") {
  for (const size_t ahead : {1, 2}) {
    CAPTURE(ahead);
    CHECK_THAT(sums_of_rank_1(2, ahead), Catch::Contains("collective_slice"));
  }
}

// Its part of the next operation there must not come before that of this one.
TEST_CASE("handed over: a rank sums its own slice where operations may share memory") {
  CHECK_THAT(sums_of_rank_1(2, 3, false), Catch::Contains("collective_slice"));
}
