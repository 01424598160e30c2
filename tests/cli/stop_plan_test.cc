// Which signal goes out when.
#include "cli/stop_plan.h"

#include "tests/support/catch.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

bool same(const StopPlan& plan, const StopPlan& wanted) {
  if (plan.size() != wanted.size()) return false;
  for (size_t i = 0; i < plan.size(); ++i)
    if (plan[i].after != wanted[i].after || plan[i].signal != wanted[i].signal ||
        plan[i].whom != wanted[i].whom)
      return false;
  return true;
}

}  // namespace

TEST_CASE("stop plan: TERM, the grace, KILL") {
  CHECK(same(planned_end(SIGTERM, 5s), {{0ms, SIGTERM}, {5s, SIGKILL}}));
  CHECK(same(fence(), {{0ms, SIGTERM}, {500ms, SIGKILL}}));
}

TEST_CASE("stop plan: after an interrupt TERM comes at half the grace") {
  CHECK(same(planned_end(SIGINT, 5s), {{0ms, SIGINT}, {2500ms, SIGTERM}, {5s, SIGKILL}}));
}

TEST_CASE("stop plan: a delay moves all steps") {
  CHECK(same(planned_end(SIGTERM, 5s, 300ms), {{300ms, SIGTERM}, {5300ms, SIGKILL}}));
}

TEST_CASE("stop plan: what a failed rank left has a while, and no longer than the grace") {
  CHECK(same(failure_end(5s, 300ms), {{300ms, SIGTERM, StopFor::kRanks},
                                      {800ms, SIGTERM, StopFor::kLeftovers},
                                      {5300ms, SIGKILL}}));
  CHECK(same(
      failure_end(100ms, 0ms),
      {{0ms, SIGTERM, StopFor::kRanks}, {100ms, SIGTERM, StopFor::kLeftovers}, {100ms, SIGKILL}}));
}

TEST_CASE("stop plan: what ranks left that ended well has a while too") {
  CHECK(same(leftovers_end(5s), {{500ms, SIGTERM, StopFor::kLeftovers}, {1s, SIGKILL}}));
  CHECK(same(leftovers_end(0s), {{0ms, SIGTERM, StopFor::kLeftovers}, {500ms, SIGKILL}}));
}

TEST_CASE("stop plan: once all ranks are over only leftovers are waited for, from then on") {
  StopPlan interrupted = planned_end(SIGINT, 5s);
  hurry(interrupted, 1s);
  CHECK(same(interrupted, {{0ms, SIGINT}, {1s, SIGTERM}, {5s, SIGKILL}}));
  StopPlan failed = failure_end(5s, 300ms);
  hurry(failed, 50ms);
  hurry(failed, 100ms);  // every turn of the loop: the first counts
  CHECK(same(failed, {{50ms, SIGTERM, StopFor::kRanks},
                      {550ms, SIGTERM, StopFor::kLeftovers},
                      {5300ms, SIGKILL}}));
}

TEST_CASE("stop plan: KILL first is KILL alone") {
  CHECK(same(planned_end(SIGKILL, 5s), {{0ms, SIGKILL}}));
}

}  // namespace hvd
