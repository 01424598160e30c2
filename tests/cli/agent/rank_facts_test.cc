// What a rank was doing last, in words.
#include "cli/agent/rank_facts.h"

#include <cstring>
#include <memory>

#include "collectives/describe.h"
#include "runtime/engine/status_writer.h"
#include "tests/support/catch.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

void write_operation(StatusPage& page, const char* text) {
  for (size_t i = 0; i <= std::strlen(text); ++i) page.operation[i] = text[i];
}

}  // namespace

TEST_CASE("rank facts: a collective is told with its number, bytes and duration") {
  auto page = std::make_unique<StatusPage>();
  page->phase = static_cast<uint32_t>(Phase::kCollective);
  page->sequence = 12;
  page->bytes = 4;
  page->since_ns = 10'000'000'000;
  write_operation(*page, "allreduce float32 [1] \"x\"");
  const StatusSnapshot status = read_status(*page);
  CHECK_FALSE(status.torn);
  CHECK(describe(status, TimePoint(12'100ms)) ==
        "was in allreduce float32 [1] \"x\" #12, 4 bytes, for 2.1 s");
}

TEST_CASE("rank facts: each operation is told as it is, also after one that is much like it") {
  auto page = std::make_unique<StatusPage>();
  StatusWriter writer(*page);
  Operation operation;  // a barrier
  uint64_t calls = 0;
  const auto doing = [&](Order order = Order::kProgram, uint64_t sequence = 0) {
    writer.begin(order, sequence, operation, hash_of(operation, 1));
    return describe(read_status(*page), TimePoint(1s));
  };
  const auto next = [&] { return doing(Order::kProgram, ++calls); };
  CHECK(next() == "was in barrier #1");
  operation.kind = OperationKind::kBroadcast;
  operation.result.count = 100;
  CHECK(next() == "was in broadcast float32 [100] from rank 0 #2, 400 bytes");
  operation.root = 1;
  CHECK(next() == "was in broadcast float32 [100] from rank 1 #3, 400 bytes");
  operation.kind = OperationKind::kAllreduce;
  operation.name = "x";
  CHECK(next() == "was in allreduce \"x\" float32 [100] Average #4, 400 bytes");
  operation.reduction.op = ReduceOp::kMax;
  CHECK(next() == "was in allreduce \"x\" float32 [100] Max #5, 400 bytes");
  operation.reduction.postscale = 3;
  CHECK(next() == "was in allreduce \"x\" float32 [100] Max postscale 3 #6, 400 bytes");
  operation.name = "y";
  CHECK(next() == "was in allreduce \"y\" float32 [100] Max postscale 3 #7, 400 bytes");
  CHECK(doing(Order::kLog) ==
        "was waiting for allreduce \"y\" float32 [100] Max postscale 3, 400 bytes");
  CHECK(doing(Order::kLog, 8) ==
        "was waiting for allreduce \"y\" float32 [100] Max postscale 3 #8, 400 bytes");
  operation.kind = OperationKind::kAllgather;
  CHECK(next() == "was in allgather \"y\" float32 [0] #8");
  operation.input.count = 7;  // each rank's own: no part of what is compared
  CHECK(next() == "was in allgather \"y\" float32 [7] #9, 28 bytes");
  operation.kind = OperationKind::kSegment;
  operation.name = {};
  operation.result.count = 0;
  operation.segment_bytes = 4096;
  CHECK(next() == "was in arena_buffer of 4096 bytes #10");
}

TEST_CASE("rank facts: every phase has words") {
  StatusSnapshot status;
  CHECK(describe(status, TimePoint(1s)) == "never called hvd::init()");
  for (uint32_t phase = 0; phase <= static_cast<uint32_t>(Phase::kInitFailed); ++phase) {
    status.phase = static_cast<Phase>(phase);
    CHECK_THAT(describe(status, TimePoint(1s)), !Catch::Contains("nothing known"));
  }
  status.phase = Phase::kComputing;
  status.step = 7;
  status.since_ns = 500'000'000;
  CHECK(describe(status, TimePoint(1s)) == "was in no call of hvd after step 7, for 0.5 s");
  status.phase = Phase::kSynchronize;
  CHECK(describe(status, TimePoint(1s)) == "was in synchronize() of step 7, for 0.5 s");
  status.phase = static_cast<Phase>(99);
  CHECK_THAT(describe(status, TimePoint(1s)), Catch::Contains("nothing known"));
}

TEST_CASE("rank facts: a rank that died while it wrote has a torn page, not an endless reader") {
  auto page = std::make_unique<StatusPage>();
  page->lock = 3;
  CHECK(read_status(*page).torn);
}

TEST_CASE("rank facts: a name without end or with control bytes does no harm") {
  auto page = std::make_unique<StatusPage>();
  for (auto& letter : page->operation) letter = '\x1b';
  page->phase = static_cast<uint32_t>(Phase::kCollective);
  CHECK(read_status(*page).operation == std::string(StatusPage::kNameBytes, '?'));
}

TEST_CASE("rank facts: a long name is shortened between its characters") {
  auto page = std::make_unique<StatusPage>();
  StatusWriter writer(*page);
  uint64_t calls = 0;
  for (const char* letter : {"é", "日", "😀"})
    for (int shift = 0; shift < 4; ++shift) {
      std::string name(static_cast<size_t>(shift), 'x');
      while (name.size() < 140) name += letter;
      Operation operation;  // a barrier
      operation.name = name;
      ++calls;
      writer.begin(Order::kProgram, calls, operation, hash_of(operation, 1));
      const StatusSnapshot status = read_status(*page);
      INFO(status.operation);
      CHECK_THAT(status.operation, !Catch::Contains("?"));
      CHECK(status.operation.size() > 120);
    }
}
