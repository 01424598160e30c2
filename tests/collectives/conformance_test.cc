// One suite over Communicator: every backend passes it, or is not done.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "hvd/error.h"
#include "tests/collectives/conformance.h"
#include "tests/collectives/reference.h"
#include "tests/support/catch.h"
#include "tests/support/extent.h"
#include "tests/support/ranks.h"

using namespace hvd;

namespace {

constexpr DataType kTypes[] = {DataType::kUint8,   DataType::kInt8,    DataType::kInt32,
                               DataType::kInt64,   DataType::kFloat16, DataType::kBfloat16,
                               DataType::kFloat32, DataType::kFloat64, DataType::kBool};
constexpr ReduceOp kOps[] = {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};
constexpr size_t kArenaBytes = 4 << 20;

// Where the tensors of rank k lie.
enum class Memory { kArena, kPrivate, kMixed };

bool in_arena(Memory memory, int rank) {
  return memory == Memory::kArena || (memory == Memory::kMixed && rank % 2 == 0);
}

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

uint64_t seed_of(int rank, size_t count, int salt) {
  return static_cast<uint64_t>(rank) * 1009 + count * 31 + static_cast<uint64_t>(salt) + 1;
}

Operation allreduce(void* data, size_t count, DataType type, const Reduction& reduction) {
  return {.kind = OperationKind::kAllreduce,
          .result = {data, count, type},
          .reduction = reduction,
          .name = "tensor"};
}

// One allreduce with its inputs and what has to come out, made once for all ranks.
struct Case {
  DataType type;
  Reduction reduction;
  size_t count;
  std::vector<ByteVector> inputs;
  ByteVector expected;
};

Case make_case(const Setting& setting, DataType type, const Reduction& reduction, size_t count,
               Values values) {
  Case c{type, reduction, count, {}, {}};
  const int size = setting.ranks();
  for (int k = 0; k < size; ++k)
    c.inputs.push_back(random_values(type, count, seed_of(k, count, 0), values));
  const bool identity = size == 1 && reduction.prescale == 1 && reduction.postscale == 1;
  c.expected = identity ? c.inputs[0] : setting.reference(type, reduction, c.inputs, setting.hosts);
  return c;
}

// Runs it on this rank, at another address than on the others, and compares every byte.
void check_case(Rank& rank, std::byte* arena, Memory memory, const Case& c) {
  ByteVector own = c.inputs[static_cast<size_t>(rank.rank)];
  std::byte* data = own.data();
  if (in_arena(memory, rank.rank)) {
    data = arena + 64 * rank.rank;
    if (!own.empty()) std::memcpy(data, own.data(), own.size());
  }
  Operation operation = allreduce(data, c.count, c.type, c.reduction);
  rank.complete(operation);
  expect(own.empty() || std::memcmp(data, c.expected.data(), own.size()) == 0,
         std::string("wrong bits: ") + name_of(c.type) + " " + name_of(c.reduction.op) + " count " +
             std::to_string(c.count) + " memory " + std::to_string(static_cast<int>(memory)));
}

void check_cases(RankThreads& ranks, const std::vector<Case>& cases) {
  ranks.run([&](Rank& rank) {
    std::byte* arena = rank.add_segment(kArenaBytes);
    for (const Case& c : cases)
      for (Memory memory : {Memory::kArena, Memory::kPrivate, Memory::kMixed})
        check_case(rank, arena, memory, c);
  });
}

}  // namespace

TEST_CASE("conformance: allreduce of every type and operation at odd lengths") {
  const Setting setting = GENERATE(from_range(settings()));
  const int size = setting.ranks();
  INFO(setting.name);
  std::vector<Case> cases;
  for (DataType type : kTypes)
    for (ReduceOp op : kOps) {
      if (type == DataType::kBool && op == ReduceOp::kAverage) continue;
      const size_t few = static_cast<size_t>(size) - 1;
      for (size_t count : {size_t{0}, size_t{1}, few, size_t{13}, size_t{257}, size_t{2053}})
        cases.push_back(make_case(setting, type, {.op = op}, count, setting.values));
    }
  RankThreads ranks(setting.hosts, setting.factory);
  check_cases(ranks, cases);
}

TEST_CASE("conformance: allreduce of every type and operation with factors") {
  const Setting setting = GENERATE(from_range(settings()));
  INFO(setting.name);
  std::vector<Case> cases;
  for (size_t i = 0; i < std::size(kTypes); i += static_cast<size_t>(every(3)))
    for (ReduceOp op : kOps)
      for (const auto& [pre, post] : {std::pair{1.7, -0.3}, {0.5, 1.0}})
        if (kTypes[i] != DataType::kBool)
          cases.push_back(make_case(setting, kTypes[i], {op, pre, post}, 257, Values::kPlain));
  RankThreads ranks(setting.hosts, setting.factory);
  check_cases(ranks, cases);
}

TEST_CASE("conformance: allreduce longer than a chunk, with factors") {
  const Setting setting = GENERATE(from_range(settings()));
  INFO(setting.name);
  std::vector<Case> cases;
  const DataType types[] = {DataType::kFloat16, DataType::kFloat32, DataType::kInt64};
  for (size_t i = 0; i < std::size(types); i += static_cast<size_t>(every(3)))
    for (Reduction reduction : {Reduction{ReduceOp::kAverage, 1, 1}, {ReduceOp::kSum, 0.25, 3}})
      cases.push_back(make_case(setting, types[i], reduction, 65537, Values::kPlain));
  cases.push_back(make_case(setting, DataType::kFloat32, {}, 530'011, Values::kPlain));
  RankThreads ranks(setting.hosts, setting.factory);
  check_cases(ranks, cases);
}

// Long enough that sums travel in pieces, which end inside an element.
TEST_CASE("conformance: long allreduce of every type, of strange values") {
  const Setting setting = GENERATE(from_range(settings()));
  INFO(setting.name);
  std::vector<Case> cases;
  for (size_t i = 0; i < std::size(kTypes); i += static_cast<size_t>(every(4)))
    for (size_t bytes : {80'000, 300'000})
      cases.push_back(make_case(setting, kTypes[i], {.op = ReduceOp::kSum},
                                bytes / size_of(kTypes[i]) + 3, setting.values));
  RankThreads ranks(setting.hosts, setting.factory);
  check_cases(ranks, cases);
}

TEST_CASE("conformance: broadcast of every type from every root") {
  const Setting setting = GENERATE(from_range(settings()));
  const int size = setting.ranks();
  INFO(setting.name);
  RankThreads ranks(setting.hosts, setting.factory);
  ranks.run([&](Rank& rank) {
    std::byte* arena = rank.add_segment(kArenaBytes);
    for (int root = 0; root < size; root += root + 3 < size ? 3 : 1)
      for (DataType type : kTypes)
        for (size_t bytes : {0, 8, 56, 2048, 2056, 65536, 300008}) {
          if (type != DataType::kUint8 && type != DataType::kFloat64 && bytes > 4096) continue;
          for (Memory memory : {Memory::kArena, Memory::kPrivate, Memory::kMixed}) {
            // Odd lengths in elements of one byte, and a last line that is not full.
            const size_t count = bytes / size_of(type) - (bytes > 8 ? 1 : 0);
            const size_t used = count * size_of(type);
            const ByteVector sent =
                random_values(type, count, seed_of(root, count, 1), Values::kStrange);
            ByteVector own(used, std::byte{0x55});
            std::byte* data = in_arena(memory, rank.rank) ? arena + 8 : own.data();
            if (used != 0) std::memset(data, 0x55, used);
            if (rank.rank == root && used != 0) std::memcpy(data, sent.data(), used);
            Operation operation{
                .kind = OperationKind::kBroadcast, .result = {data, count, type}, .root = root};
            rank.complete(operation);
            expect(used == 0 || std::memcmp(data, sent.data(), used) == 0,
                   std::string("broadcast of ") + name_of(type) + " from " + std::to_string(root) +
                       ", " + std::to_string(count));
            // What was sent is the sender's again.
            if (used != 0) std::memset(data, 0, used);
          }
        }
  });
}

TEST_CASE("conformance: allgather of every type and of different lengths, in rank order") {
  const Setting setting = GENERATE(from_range(settings()));
  const int size = setting.ranks();
  INFO(setting.name);
  RankThreads ranks(setting.hosts, setting.factory);
  ranks.run([&](Rank& rank) {
    std::byte* arena = rank.add_segment(kArenaBytes);
    const auto count_of = [&](int shape, int k) -> size_t {
      const auto index = static_cast<size_t>((k + shape) % size);
      if (shape < 4) return index * 3 + (shape == 0 ? 0 : 1);
      if (shape < 6) return index * 700;
      return index % 2 == 0 ? 3 : 60001 + index * 20000;
    };
    for (int turn = 0; turn < 8 + static_cast<int>(std::size(kTypes)); ++turn) {
      // Every shape of one type, then one shape of every type.
      const int shape = turn < 8 ? turn : 5;
      const DataType type = turn < 8 ? DataType::kInt32 : kTypes[turn - 8];
      for (Memory memory : {Memory::kArena, Memory::kPrivate, Memory::kMixed}) {
        ByteVector expected;
        for (int k = 0; k < size; ++k) {
          const ByteVector part =
              random_values(type, count_of(shape, k), seed_of(k, 1, shape), Values::kStrange);
          expected.insert(expected.end(), part.begin(), part.end());
        }
        const size_t mine = count_of(shape, rank.rank);
        ByteVector own = random_values(type, mine, seed_of(rank.rank, 1, shape), Values::kStrange);
        const std::byte* data = own.data();
        if (in_arena(memory, rank.rank) && !own.empty())
          data = static_cast<std::byte*>(std::memcpy(arena + 128, own.data(), own.size()));
        ByteVector gathered;
        int calls = 0;
        Operation operation{.kind = OperationKind::kAllgather,
                            .result = {nullptr, 0, type},
                            .input = {data, mine, type},
                            .allocate = [&](std::span<const uint64_t> counts) -> void* {
                              for (int k = 0; k < size; ++k)
                                expect(counts[static_cast<size_t>(k)] == count_of(shape, k),
                                       "the counts are those of all ranks");
                              gathered.resize(++calls == 1 ? expected.size() / 2 : expected.size());
                              return gathered.size() == expected.size() ? gathered.data() : nullptr;
                            }};
        rank.complete(operation);
        expect(calls == (expected.empty() ? 1 : 2), "allocate is called until there is room");
        expect(gathered == expected,
               std::string("allgather of ") + name_of(type) + ", shape " + std::to_string(shape));
      }
    }
  });
}

TEST_CASE("conformance: nobody passes a barrier before everybody has come") {
  const Setting setting = GENERATE(from_range(settings()));
  const int size = setting.ranks();
  INFO(setting.name);
  RankThreads ranks(setting.hosts, setting.factory);
  std::atomic<int> come{0};
  ranks.run([&](Rank& rank) {
    for (int round = 1; round <= 50; ++round) {
      come.fetch_add(1);
      Operation operation;
      rank.complete(operation);
      expect(come.load() >= round * size, "passed too early");
    }
  });
}

TEST_CASE("conformance: many operations of every kind under way at once") {
  const Setting setting = GENERATE(from_range(settings()));
  const int size = setting.ranks();
  INFO(setting.name);
  RankThreads ranks(setting.hosts, setting.factory);
  ranks.run([&](Rank& rank) {
    std::byte* arena = rank.add_segment(kArenaBytes);
    constexpr int kTensors = 40;
    std::vector<std::vector<float>> tensors;
    std::vector<std::unique_ptr<Operation>> operations;
    for (int round = 0; round < 5; round += every(3)) {
      tensors.clear();
      operations.clear();
      for (int t = 0; t < kTensors; ++t) {
        const size_t count = t % 4 == 0 ? 5 : t % 4 == 1 ? 900 : 20000;
        tensors.emplace_back(count, static_cast<float>(rank.rank + t));
        float* data = tensors.back().data();
        if (t % 4 == 3) {
          data = reinterpret_cast<float*>(arena) + t / 4 * 20000;
          std::fill(data, data + count, static_cast<float>(rank.rank + t));
        }
        operations.push_back(std::make_unique<Operation>());
        Operation& operation = *operations.back();
        operation.kind = t % 7 == 6 ? OperationKind::kBarrier : OperationKind::kAllreduce;
        operation.result = {data, count, DataType::kFloat32};
        operation.reduction = {.op = ReduceOp::kSum};
        rank.communicator->start(operation);
      }
      rank.advance_until([&] { return rank.communicator->idle(); });
      for (int t = 0; t < kTensors; ++t) {
        const Operation& operation = *operations[static_cast<size_t>(t)];
        expect(operation.outcome == Outcome::kComplete, "not complete");
        if (operation.kind == OperationKind::kBarrier) continue;
        const auto* data = static_cast<const float*>(operation.result.data);
        const float sum = static_cast<float>(size * t) + static_cast<float>(size * (size - 1)) / 2;
        expect(std::all_of(data, data + operation.result.count, [&](float x) { return x == sum; }),
               "wrong sum in tensor " + std::to_string(t));
      }
    }
  });
}

TEST_CASE("conformance: two communicators begun in opposite orders, under one thread a rank") {
  const Setting setting = GENERATE(from_range(settings()));
  const int size = setting.ranks();
  INFO(setting.name);
  if (size == 1 || size > 4 || !setting.another) return;
  RankThreads ranks(setting.hosts, setting.factory);
  ranks.run([&](Rank& rank) {
    const std::unique_ptr<Communicator> other = setting.another(rank);
    std::array<Communicator*, 2> order = {rank.communicator.get(), other.get()};
    if (rank.rank % 2 == 1) std::swap(order[0], order[1]);
    for (int round = 0; round < 20; round += every(4)) {
      std::vector<std::vector<float>> tensors(6, std::vector<float>(40'000, 1));
      std::vector<Operation> operations(6);
      for (size_t i = 0; i < 6; ++i) {
        operations[i].kind = OperationKind::kAllreduce;
        operations[i].result = {tensors[i].data(), 40'000, DataType::kFloat32};
        operations[i].reduction.op = ReduceOp::kSum;
        order[i / 3]->start(operations[i]);
        // Deep into its first one, and what is not begun elsewhere holds nobody inside.
        for (int tries = 0; i == 2 && tries < 200; ++tries) order[0]->progress();
      }
      rank.advance_until([&] {
        order[0]->progress();
        order[1]->progress();
        return order[0]->idle() && order[1]->idle();
      });
      for (const std::vector<float>& tensor : tensors)
        expect(std::all_of(tensor.begin(), tensor.end(),
                           [&](float x) { return x == static_cast<float>(size); }),
               "wrong sum");
    }
  });
}
