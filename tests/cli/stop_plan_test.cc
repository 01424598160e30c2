// Which signal goes out when.
#include "cli/stop_plan.h"

#include "tests/support/catch.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

bool same(const StopPlan& plan, const StopPlan& wanted) {
  if (plan.size() != wanted.size()) return false;
  for (size_t i = 0; i < plan.size(); ++i)
    if (plan[i].after != wanted[i].after || plan[i].signal != wanted[i].signal) return false;
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

TEST_CASE("stop plan: KILL first is KILL alone") {
  CHECK(same(planned_end(SIGKILL, 5s), {{0ms, SIGKILL}}));
}

}  // namespace hvd
