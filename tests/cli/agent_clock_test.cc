#include "cli/agent_clock.h"

#include <limits>

#include "tests/support/catch.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

const TimePoint kBegin{100h};

int64_t its(std::chrono::nanoseconds time) { return time.count(); }

}  // namespace

TEST_CASE("agent clock: the quickest word tells best how it stands to ours") {
  AgentClock clock;
  clock.note(its(5s), kBegin + 300ms);
  CHECK(clock.ours(its(6s)) == kBegin + 1300ms);
  clock.note(its(7s), kBegin + 2s + 100ms);
  CHECK(clock.ours(its(6s)) == kBegin + 1100ms);
  clock.note(its(8s), kBegin + 5s);
  CHECK(clock.ours(its(6s)) == kBegin + 1100ms);
}

TEST_CASE("agent clock: a time that no clock shows is none, and overflows nothing") {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const int64_t said : {kLeast, kMost}) {
    AgentClock clock;
    clock.note(said, kBegin);
    CHECK(clock.ours(kMost) - kBegin >= 0h);
    CHECK(kBegin - clock.ours(kLeast) >= 0h);
    clock.note(its(5s), kBegin);
    CHECK(clock.ours(its(5s)) <= kBegin);
  }
}

}  // namespace hvd
