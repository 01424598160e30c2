// What a rank was doing last, in words.
#include "cli/agent/rank_facts.h"

#include <cstring>
#include <memory>

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

TEST_CASE("rank facts: every phase has words") {
  StatusSnapshot status;
  CHECK(describe(status, TimePoint(1s)) == "never called hvd::init()");
  for (uint32_t phase = 0; phase <= static_cast<uint32_t>(Phase::kLeft); ++phase) {
    status.phase = static_cast<Phase>(phase);
    CHECK_THAT(describe(status, TimePoint(1s)), !Catch::Contains("nothing known"));
  }
  status.phase = Phase::kComputing;
  status.step = 7;
  status.since_ns = 500'000'000;
  CHECK(describe(status, TimePoint(1s)) == "was computing of step 7, for 0.5 s");
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
