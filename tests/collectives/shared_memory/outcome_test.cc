// What ranks see when they differ, when one leaves, and what no good operation may cost.
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "collectives/shared_memory/shared_memory_communicator.h"
#include "hvd/error.h"
#include "tests/collectives/reference.h"
#include "tests/support/allocations.h"
#include "tests/support/catch.h"
#include "tests/support/left_out.h"
#include "tests/support/ranks.h"
#include "tests/support/shared_memory_view.h"

using namespace hvd;

namespace {

void expect(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

Operation allreduce(void* data, size_t count, std::string_view name = "x",
                    DataType type = DataType::kFloat32, ReduceOp op = ReduceOp::kSum) {
  return {.kind = OperationKind::kAllreduce,
          .result = {data, count, type},
          .reduction = {.op = op},
          .name = name};
}

// Every rank starts another operation, is refused with the same text, and goes on.
void check_refused(int size, const std::function<void(Rank&, Operation&, std::byte*)>& fill,
                   const std::vector<std::string>& sides) {
  RankThreads ranks(size);
  std::vector<std::string> texts(static_cast<size_t>(size));
  ranks.run([&](Rank& rank) {
    for (int round = 0; round < 20; ++round) {
      ByteVector memory(256 * 1024, std::byte{7});
      Operation operation;
      fill(rank, operation, memory.data());
      expect(rank.run(operation) == Outcome::kRefused, "not refused");
      texts[static_cast<size_t>(rank.rank)] = operation.error;
      expect(memory == ByteVector(memory.size(), std::byte{7}), "touched");
      float one = 1;
      Operation next = allreduce(&one, 1);
      rank.complete(next);
      expect(one == static_cast<float>(size), "the next operation is wrong");
    }
  });
  CHECK(ranks.host().block().trouble == 0);
  for (const std::string& text : texts) {
    CHECK(text == texts[0]);
    for (const std::string& side : sides) CHECK_THAT(text, Catch::Contains(side));
  }
}

}  // namespace

TEST_CASE("outcome: different shapes are refused by all, naming both sides") {
  check_refused(2,
                [](Rank& rank, Operation& operation, std::byte* memory) {
                  operation.kind = OperationKind::kAllreduce;
                  operation.result = {memory, rank.rank == 0 ? size_t{3} : size_t{4},
                                      DataType::kFloat32};
                  operation.name = "loss";
                },
                {"rank 0 called allreduce \"loss\" float32 [3] Average",
                 "rank 1 called allreduce \"loss\" float32 [4] Average"});
}

TEST_CASE("outcome: small against large, types, factors, kinds and names are told apart") {
  check_refused(3,
                [](Rank& rank, Operation& operation, std::byte* memory) {
                  operation.kind = OperationKind::kAllreduce;
                  operation.result = {memory, rank.rank == 2 ? size_t{30000} : size_t{3},
                                      DataType::kInt32};
                },
                {"rank 0 called allreduce int32 [3]", "rank 2 called allreduce int32 [30000]"});
  check_refused(3,
                [](Rank& rank, Operation& operation, std::byte* memory) {
                  operation.kind = OperationKind::kAllreduce;
                  operation.result = {memory, 30000,
                                      rank.rank == 1 ? DataType::kInt32 : DataType::kFloat32};
                },
                {"rank 0 called allreduce float32", "rank 1 called allreduce int32"});
  check_refused(2,
                [](Rank& rank, Operation& operation, std::byte* memory) {
                  operation.kind = OperationKind::kAllreduce;
                  operation.result = {memory, 3, DataType::kFloat32};
                  operation.reduction = {.op = ReduceOp::kSum,
                                         .prescale = rank.rank == 0 ? 1 : 0.5};
                },
                {"rank 0 called allreduce float32 [3] Sum,",
                 "rank 1 called allreduce float32 [3] Sum prescale 0.5"});
  check_refused(2,
                [](Rank& rank, Operation& operation, std::byte* memory) {
                  operation.kind = OperationKind::kAllreduce;
                  operation.result = {memory, 3, DataType::kFloat32};
                  operation.reduction.prescale = rank.rank == 0 ? 0.333333 : 1.0 / 3;
                },
                {"rank 0 called allreduce float32 [3] Average prescale 0.333333,",
                 "rank 1 called allreduce float32 [3] Average prescale 0.3333333333333333;"});
  const std::string begin(200, 'n'), names[] = {begin + ".weight", begin + ".bias"};
  check_refused(2,
                [&](Rank& rank, Operation& operation, std::byte* memory) {
                  operation.kind = OperationKind::kAllreduce;
                  operation.result = {memory, 3, DataType::kFloat32};
                  operation.name = names[rank.rank];
                },
                {".weight\" float32 [3]", ".bias\" float32 [3]"});
  check_refused(2,  // words that say the same of two calls are no reason to name one rank only
                [](Rank& rank, Operation& operation, std::byte* memory) {
                  operation.kind = OperationKind::kAllreduce;
                  operation.result = {memory, 3, DataType::kFloat32};
                  operation.shape_hash = static_cast<uint64_t>(rank.rank);
                },
                {"rank 0 called allreduce", "rank 1 called allreduce"});
  check_refused(4,
                [](Rank& rank, Operation& operation, std::byte* memory) {
                  operation.kind =
                      rank.rank == 3 ? OperationKind::kBarrier : OperationKind::kBroadcast;
                  operation.result = {memory, 30000, DataType::kUint8};
                  operation.root = rank.rank == 1 ? 1 : 0;
                },
                {"rank 0 called broadcast uint8 [30000] from rank 0",
                 "rank 1 called broadcast uint8 [30000] from rank 1", "rank 3 called barrier"});
  check_refused(2,
                [](Rank& rank, Operation& operation, std::byte* memory) {
                  operation.kind = OperationKind::kAllreduce;
                  operation.result = {memory, 64, DataType::kFloat32};
                  operation.shape_hash = static_cast<uint64_t>(rank.rank);
                  operation.shape = rank.rank == 0 ? "float32 [64]" : "float32 [8, 8]";
                  operation.name = "weight";
                },
                {"allreduce \"weight\" float32 [64]", "allreduce \"weight\" float32 [8, 8]"});
}

TEST_CASE("outcome: a communicator of other members' calls refuses everything") {
  RankThreads ranks(2, [](Rank& rank) {
    const uint64_t bytes = communicator_bytes(false);
    rank.peers->request_segment(0, bytes);
    rank.arena.add(std::make_shared<Segment>(0, *rank.peers->take_segment(0), bytes, rank.rank, 0));
    return make_communicator(*rank.peers, rank.arena,
                             {.seed = static_cast<uint64_t>(rank.rank), .staging = false});
  });
  ranks.run([&](Rank& rank) {
    Operation operation;
    expect(rank.run(operation) == Outcome::kRefused, "not refused");
  });
}

TEST_CASE("outcome: operations around a refused one complete") {
  RankThreads ranks(3);
  ranks.run([&](Rank& rank) {
    std::byte* arena = rank.add_segment(1 << 20);
    auto* large = reinterpret_cast<float*>(arena);
    for (int round = 0; round < 50; ++round) {
      std::fill(large, large + 100000, 1.0f);
      float first = 1, wrong = 1, last = 1;
      Operation a = allreduce(large, 100000), b = allreduce(&first, 1);
      Operation c = allreduce(&wrong, 1, rank.rank == round % 3 ? "other" : "same");
      Operation d = allreduce(&last, 1);
      for (Operation* operation : {&a, &b, &c, &d}) rank.communicator->start(*operation);
      rank.advance_until([&] { return rank.communicator->idle(); });
      expect(a.outcome == Outcome::kComplete && b.outcome == Outcome::kComplete, "before");
      expect(c.outcome == Outcome::kRefused && wrong == 1, "refused");
      expect(d.outcome == Outcome::kComplete && last == 3 && first == 3, "after");
      expect(large[0] == 3 && large[99999] == 3, "large");
    }
  });
}

TEST_CASE("outcome: no room for a gathered result is one rank's own matter") {
  RankThreads ranks(3);
  ranks.run([&](Rank& rank) {
    for (size_t count : {size_t{5}, size_t{100000}}) {
      std::vector<float> part(count, static_cast<float>(rank.rank)), all;
      Operation operation{.kind = OperationKind::kAllgather,
                          .input = {part.data(), part.size(), DataType::kFloat32},
                          .allocate = [&](std::span<const uint64_t>) -> void* {
                            if (rank.rank == 1) throw std::bad_alloc();
                            all.resize(3 * count);
                            return all.data();
                          }};
      operation.result.type = DataType::kFloat32;
      const Outcome outcome = rank.run(operation);
      if (rank.rank == 1) {
        expect(outcome == Outcome::kRefused && operation.code == ErrorCode::kUnavailable &&
                   operation.error == "allgather: no room for a result of " +
                                          std::to_string(3 * count * sizeof(float)) +
                                          " bytes: std::bad_alloc",
               operation.error);
      } else {
        expect(outcome == Outcome::kComplete, "complete");
        expect(all[0] == 0 && all[count] == 1 && all[3 * count - 1] == 2, "gathered");
      }
      float one = 1;
      Operation next = allreduce(&one, 1);
      rank.complete(next);
      expect(one == 3, "the next one");
    }
  });
}

TEST_CASE(
    "outcome: a segment that the agent refuses is refused by all, and the next one is there") {
  RankThreads ranks(3);
  ranks.host().limit_segments(1 << 20, "the memory limit of this host is reached");
  ranks.run([&](Rank& rank) {
    Operation operation{
        .kind = OperationKind::kSegment, .segment = rank.next_segment++, .segment_bytes = 2 << 20};
    expect(rank.run(operation) == Outcome::kRefused, "not refused");
    expect(operation.error.find("the memory limit of this host is reached") != std::string::npos &&
               operation.code == ErrorCode::kUnavailable,
           operation.error);
    expect(!rank.arena.has(operation.segment), "it is not there");
    std::byte* memory = rank.add_segment(1 << 19);
    expect(rank.arena.find(memory, 1 << 19).has_value(), "this one is");
  });
}

TEST_CASE("outcome: a segment that not all asked for leaves no memory behind") {
  RankThreads ranks(2);
  ranks.run([&](Rank& rank) {
    Operation operation{.kind = OperationKind::kSegment,
                        .segment = 1,
                        .segment_bytes = 1 << 20,
                        .populate_bytes = 1 << 20};
    if (rank.rank == 1) operation.kind = OperationKind::kBarrier;
    expect(rank.run(operation) == Outcome::kRefused, "not refused");
    expect(operation.disagreed, "and why");
  });
  const auto pieces = ranks.rank(0).peers->take_segment(1);
  REQUIRE(pieces);
  for (const UniqueFd& piece : *pieces) {
    struct stat facts{};
    REQUIRE(fstat(piece.get(), &facts) == 0);
    CHECK(facts.st_size == 1 << 20);
    CHECK(facts.st_blocks == 0);
  }
}

TEST_CASE("outcome: a segment for which memory runs out half-way leaves none behind") {
  constexpr size_t kHalf = 2 << 20;  // of which each call takes one
  RankThreads ranks(2);
  std::array<Operation, 2> operations;
  for (int k = 0; k < 2; ++k) {
    Operation& operation = operations[static_cast<size_t>(k)];
    operation.kind = OperationKind::kSegment;
    operation.segment = 1;
    operation.segment_bytes = operation.populate_bytes = 2 * kHalf;
    ranks.rank(k).communicator->start(operation);
  }
  Communicator& zero = *ranks.rank(0).communicator;
  zero.progress();
  const auto pieces = ranks.rank(0).peers->take_segment(1);
  REQUIRE(pieces);
  struct stat own{};
  REQUIRE(fstat(pieces->front().get(), &own) == 0);
  REQUIRE(own.st_blocks > 0);
  CHECK(operations[0].outcome == Outcome::kPending);
  if (madvise(nullptr, 0, MADV_POPULATE_WRITE) != 0) {
    return note_left_out("outcome_test: memory that cannot be populated",
                         "this kernel has no MADV_POPULATE_WRITE");
  }
  // What lies behind an empty file's end cannot be faulted in.
  const std::vector<SharedPiece> mapped = shared_pieces(getpid());
  const auto piece = std::find_if(mapped.begin(), mapped.end(),
                                  [&](const SharedPiece& one) { return one.inode == own.st_ino; });
  REQUIRE(piece != mapped.end());
  const UniqueFd empty(memfd_create("hvd-test-empty", MFD_CLOEXEC));
  REQUIRE(mmap(reinterpret_cast<void*>(piece->begin + kHalf), kHalf, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_FIXED, empty.get(), 0) != MAP_FAILED);
  ranks.run([&](Rank& rank) {
    const Operation& mine = operations[static_cast<size_t>(rank.rank)];
    rank.advance_until([&] { return mine.outcome != Outcome::kPending; });
    expect(mine.outcome == Outcome::kRefused, "not refused");
    expect(mine.error.find("cannot populate") != std::string::npos, mine.error);
  });
  for (const UniqueFd& memory : *pieces) {
    REQUIRE(fstat(memory.get(), &own) == 0);
    CHECK(own.st_blocks == 0);
  }
}

TEST_CASE("outcome: a rank that left is named by the first operation that needs it") {
  RankThreads ranks(3);
  ranks.run([&](Rank& rank) {
    float one = 1;
    Operation operation = allreduce(&one, 1);
    rank.complete(operation);
    if (rank.rank == 1) {  // shutdown()
      rank.communicator->close();
      expect(rank.communicator->drained(), "nothing was under way");
      RankWords& words = rank.peers->block().rank(1);
      words.quiet.store(1, std::memory_order_release);
      words.left.store(1, std::memory_order_release);
      ring_sleepers(*rank.peers);
      return;
    }
    Operation next = allreduce(&one, 1);
    rank.communicator->start(next);
    rank.leave_broken_epoch();
    expect(next.outcome == Outcome::kFailedUntouched, "failed");
    expect(one == 3, "untouched");
    Operation late;
    rank.communicator->start(late);
    expect(late.outcome == Outcome::kFailedUntouched, "after the end");
  });
  ControlBlock& block = ranks.host().block();
  CHECK((block.reason & 255) == static_cast<uint32_t>(TroubleReason::kLeft));
  const int who = static_cast<int>(block.reason >> 8);
  for (int rank = 0; rank < ranks.size(); ++rank) CHECK(block.misses(who, rank) == (rank == 1));
  CHECK(std::string(block.rank(who).reason) ==
        "rank 1 called shutdown() while other ranks went on");
}

TEST_CASE("outcome: a rank may leave while others still finish what it took part in") {
  RankThreads ranks(2);
  ranks.run([&](Rank& rank) {
    std::vector<float> data(50000, 1);
    Operation operation = allreduce(data.data(), data.size());
    rank.complete(operation);
    expect(data[49999] == 2, "sum");
    rank.communicator->close();
    rank.peers->block().rank(rank.rank).quiet = 1;
    rank.peers->block().rank(rank.rank).left = 1;
  });
  CHECK(ranks.host().block().trouble == 0);
}

TEST_CASE("outcome: who is waited for is known") {
  RankThreads ranks(3);
  Operation operation;
  Communicator& zero = *ranks.rank(0).communicator;
  CHECK(zero.missing_ranks().empty());
  zero.start(operation);
  zero.progress();
  CHECK(zero.missing_ranks() == std::vector<int>{1, 2});
  Operation second;
  ranks.rank(2).communicator->start(second);
  ranks.rank(2).communicator->progress();
  CHECK(zero.missing_ranks() == std::vector<int>{1});
  CHECK(zero.entered() == 1);
  CHECK_FALSE(zero.idle());
}

// Rank 2 stands still once it has entered; where its data go through staging, after a chunk or
// more.
TEST_CASE("outcome: who stands still in the midst of an operation is waited for, and nobody else") {
  constexpr size_t kCount = 1 << 20;
  const auto [kind, root] =
      GENERATE(values<std::pair<OperationKind, int>>({{OperationKind::kAllreduce, 0},
                                                      {OperationKind::kBroadcast, 0},
                                                      {OperationKind::kBroadcast, 2},
                                                      {OperationKind::kAllgather, 0}}));
  const int steps = GENERATE(1, 2, 3, 40);
  RankThreads ranks(3);
  std::vector<std::vector<float>> data(3, std::vector<float>(kCount, 1)), all(3);
  std::vector<Operation> operations(3);
  const auto progress = [&](int rank) { ranks.rank(rank).communicator->progress(); };
  for (size_t k = 0; k < 3; ++k) {
    Operation& one = operations[k];
    one.kind = kind;
    one.root = root;
    if (kind == OperationKind::kAllgather)
      one.input = {data[k].data(), kCount, DataType::kFloat32};
    else
      one.result.data = data[k].data(), one.result.count = kCount;
    one.allocate = [&, k](std::span<const uint64_t> counts) -> void* {
      all[k].resize(counts[0] * 3);
      return all[k].data();
    };
    ranks.rank(int(k)).communicator->start(one);
  }
  for (const int k : {0, 1}) progress(k);
  for (int i = 0; i < steps; ++i) progress(2);
  for (int i = 0; i < 2000; ++i) progress(i % 2);
  for (const int k : {0, 1}) {
    CAPTURE(k, steps, int(kind), root);
    CHECK(ranks.rank(k).communicator->missing_ranks() == std::vector{2});
    CHECK(ranks.rank(k).communicator->not_entered().empty());
  }
  for (int i = 0; i < 10'000; ++i) progress((i + 2) % 3);
  for (const Operation& one : operations) CHECK(one.outcome == Outcome::kComplete);
}

TEST_CASE("outcome: publishing rings who sleeps") {
  RankThreads ranks(2);
  Peers& one = *ranks.rank(1).peers;
  pollfd doorbell{one.doorbell(kCaller), POLLIN, 0};
  Operation first, second;
  ranks.rank(0).communicator->start(first);
  ranks.rank(0).communicator->progress();
  CHECK(poll(&doorbell, 1, 0) == 0);
  one.block().rank(1).asleep = 1u << kCaller;
  ranks.rank(0).communicator->start(second);
  ranks.rank(0).communicator->progress();
  CHECK(poll(&doorbell, 1, 0) == 1);
}

TEST_CASE("outcome: sequence numbers may pass 32 bits") {
  RankThreads ranks(3);
  for (int k = 0; k < 3; ++k)
    dynamic_cast<SharedMemoryCommunicator&>(*ranks.rank(k).communicator)
        .start_at((uint64_t{1} << 32) - 30);
  ranks.run([&](Rank& rank) {
    std::byte* arena = rank.add_segment(1 << 20);
    for (int round = 0; round < 30; ++round) {
      float one = 1;
      auto* large = reinterpret_cast<float*>(arena);
      std::fill(large, large + 2000, 1.0f);
      Operation a = allreduce(&one, 1), b = allreduce(large, 2000);
      Operation c = allreduce(&one, 1, rank.rank == 0 ? "this" : "that");
      for (Operation* operation : {&a, &b, &c}) rank.communicator->start(*operation);
      rank.advance_until([&] { return rank.communicator->idle(); });
      expect(one == 3 && large[1999] == 3, "sums");
      expect(c.outcome == Outcome::kRefused, "refused");
    }
  });
}

TEST_CASE("outcome: what was never said, or long ago, is not taken for said") {
  const uint64_t half = uint64_t{1} << 31;
  const uint64_t next = GENERATE_COPY(values({uint64_t{1}, half, half + 1, 2 * half - 8,
                                              2 * half - 1, 2 * half, 2 * half + 8, 3 * half + 5}));
  const uint64_t age = GENERATE_COPY(values({uint64_t{0}, half + 8, 2 * half - 16}));  // 0: never
  CAPTURE(next, age);
  const uint64_t old = age == 0 ? 0 : word_of(next - age, 7);
  RankThreads ranks(2);
  Communicator& zero = *ranks.rank(0).communicator;
  Communicator& one = *ranks.rank(1).communicator;
  for (Communicator* each : {&zero, &one})
    dynamic_cast<SharedMemoryCommunicator&>(*each).start_at(next - 1);
  const auto lines_of = [&](int rank) {
    std::byte* words = ranks.rank(rank).arena.segment(0)->own();
    return std::span(reinterpret_cast<CommunicatorWords*>(words)->lines[next % kOperationSlots]);
  };
  for (const int rank : {0, 1})
    for (WordLine& line : lines_of(rank)) line.word = old;
  std::array<std::vector<float>, 2> data = {std::vector<float>(100, 1), std::vector<float>(100, 2)};
  Operation lines = allreduce(data[0].data(), 100), theirs = allreduce(data[1].data(), 100);
  zero.start(lines);
  zero.progress();
  CHECK(zero.missing_ranks() == std::vector<int>{1});
  one.start(theirs);
  one.progress();
  WordLine& last = lines_of(1)[7];
  const uint64_t said = last.word.exchange(old);  // as if it was stopped before its last line
  zero.progress();
  CHECK(lines.outcome == Outcome::kPending);
  last.word = said;
  for (int round = 0; round < 2; ++round) zero.progress(), one.progress();
  CHECK(lines.outcome == Outcome::kComplete);
  CHECK(theirs.outcome == Outcome::kComplete);
  CHECK(data[0] == std::vector<float>(100, 3));
  CHECK(data[1] == std::vector<float>(100, 3));
}

TEST_CASE("outcome: a word that has come is never zero") {
  const uint64_t sequence = GENERATE(uint64_t{1}, uint64_t{1} << 32);
  for (const uint64_t hash : {uint64_t{0}, uint64_t{3} << 32, uint64_t{5}})
    CHECK(reached(word_of(sequence, hash), sequence));
}

TEST_CASE("outcome: no operation allocates") {
  RankThreads ranks(2);
  ranks.run([&](Rank& rank) {
    std::byte* arena = rank.add_segment(1 << 20);
    std::vector<float> own(60000, 1), all(120000);
    const auto round = [&] {
      Operation small = allreduce(own.data(), 2), lines = allreduce(own.data(), 500);
      Operation large = allreduce(arena, 100000), staged = allreduce(own.data(), 60000);
      Operation broadcast{.kind = OperationKind::kBroadcast,
                          .result = {own.data(), 60000, DataType::kFloat32}};
      Operation gather{.kind = OperationKind::kAllgather,
                       .input = {own.data(), 60000, DataType::kFloat32},
                       .allocate = [&](std::span<const uint64_t>) { return all.data(); }};
      gather.result.type = DataType::kFloat32;
      Operation barrier;
      for (Operation* operation : {&small, &lines, &large, &staged, &broadcast, &gather, &barrier})
        rank.communicator->start(*operation);
      while (!rank.communicator->idle())
        if (!rank.communicator->progress()) sched_yield();
    };
    round();
    const long before = allocations_of_this_thread();
    for (int k = 0; k < 20; ++k) round();
    const long made = allocations_of_this_thread() - before;
    expect(made == 0, std::to_string(made) + " allocations");
  });
}
