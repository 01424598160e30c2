// What is due when an agent or its keeper does not answer.
#include "cli/agent_watch.h"

#include <vector>

#include "tests/support/catch.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;
using Due = AgentWatch::Due;

const TimePoint kStart{};

}  // namespace

TEST_CASE("agent watch: silence is said after 3 ticks and ends the lease after the time-out") {
  AgentWatch watch(5s, kStart);
  CHECK(watch.deadline() == kStart + 1s);
  CHECK(watch.tick(kStart + 1s) == Due::kNothing);
  CHECK(watch.tick(kStart + 2s) == Due::kNothing);
  CHECK(watch.tick(kStart + 3s) == Due::kSaySilent);
  CHECK(watch.tick(kStart + 4s) == Due::kNothing);
  CHECK(watch.tick(kStart + 5s) == Due::kCloseLease);
}

TEST_CASE("agent watch: an agent that speaks is never silent, however its words lie to the ticks") {
  AgentWatch watch(1s, kStart);  // too short for one that speaks once a second: taken as 2 s
  for (int second = 1; second < 100; ++second) {
    REQUIRE(watch.tick(kStart + second * 1s) == Due::kNothing);
    watch.heard(kStart + second * 1s + second * 5ms);
  }
}

TEST_CASE("agent watch: silence begins with the last word") {
  AgentWatch watch(4s, kStart);
  CHECK(watch.tick(kStart + 1s) == Due::kNothing);
  watch.heard(kStart + 1900ms);
  CHECK(watch.deadline() == kStart + 2900ms);
  CHECK(watch.tick(kStart + 2s) == Due::kNothing);
  CHECK(watch.tick(kStart + 3s) == Due::kNothing);
  CHECK(watch.tick(kStart + 4s) == Due::kNothing);
  CHECK(watch.deadline() == kStart + 4900ms);
  CHECK(watch.tick(kStart + 4900ms) == Due::kSaySilent);
  CHECK(watch.silence() == 3s);
  CHECK(watch.deadline() == kStart + 5900ms);
  CHECK(watch.tick(kStart + 5900ms) == Due::kCloseLease);
}

TEST_CASE("agent watch: who was held by a debugger has its time again after that let go") {
  AgentWatch watch(2s, kStart);
  CHECK(watch.tick(kStart + 1s) == Due::kNothing);
  CHECK(watch.tick(kStart + 2s) == Due::kCloseLease);
  CHECK(watch.excuse(true));
  CHECK(watch.tick(kStart + 3s) == Due::kNothing);
  CHECK(watch.tick(kStart + 4s) == Due::kCloseLease);
  CHECK(watch.excuse(false));
  CHECK(watch.tick(kStart + 5s) == Due::kNothing);
  CHECK(watch.tick(kStart + 6s) == Due::kCloseLease);
  CHECK_FALSE(watch.excuse(false));
  CHECK(watch.excuse(true));
  watch.heard(kStart + 7s);
  CHECK_FALSE(watch.excuse(false));
}

TEST_CASE("agent watch: time that hvdrun slept through is one tick") {
  AgentWatch watch(5s, kStart);
  CHECK(watch.tick(kStart + 1h) == Due::kNothing);
  CHECK(watch.silence() == 1s);
}

TEST_CASE("agent watch: while the job ends, a silent agent loses its lease when its time is over") {
  AgentWatch watch(60s, kStart);
  for (int second = 1; second <= 4; ++second) watch.tick(kStart + second * 1s);
  watch.hurry(kStart + 8500ms, 3s);
  for (int second = 5; second <= 8; ++second)
    REQUIRE(watch.tick(kStart + second * 1s) == Due::kNothing);
  CHECK(watch.deadline() == kStart + 8500ms);
  CHECK(watch.tick(kStart + 8500ms) == Due::kCloseLease);
}

TEST_CASE("agent watch: while the job ends, an agent that speaks keeps its lease") {
  AgentWatch watch(60s, kStart);
  watch.hurry(kStart + 2s, 3s);
  for (int second = 1; second < 20; ++second) {
    REQUIRE(watch.tick(kStart + second * 1s) == Due::kNothing);
    REQUIRE(watch.deadline() == kStart + (second + 1) * 1s);
    watch.heard(kStart + second * 1s);
  }
  CHECK(watch.tick(kStart + 20s) == Due::kNothing);
  CHECK(watch.tick(kStart + 21s) == Due::kNothing);
  CHECK(watch.tick(kStart + 22s) == Due::kCloseLease);
}

TEST_CASE("agent watch: a second hurry only makes the end come sooner") {
  AgentWatch watch(60s, kStart);
  watch.tick(kStart + 1s), watch.tick(kStart + 2s);
  watch.hurry(kStart + 10s, 3s);
  watch.hurry(kStart + 2500ms, 2s);
  watch.hurry(kStart + 20s, 9s);
  CHECK(watch.tick(kStart + 2500ms) == Due::kCloseLease);
}

TEST_CASE("agent watch: an agent that never came is not waited for") {
  AgentWatch watch(60s, kStart);
  watch.hurry(kStart + 100ms, 0s);
  CHECK(watch.deadline() == kStart + 100ms);
  CHECK(watch.tick(kStart + 100ms) == Due::kCloseLease);
}

TEST_CASE("agent watch: the keeper has 3 s from the end on, then it is killed") {
  AgentWatch watch(60s, kStart);
  watch.expect_end(kStart + 10s);
  watch.expect_end(kStart + 12s);  // the first counts
  CHECK(watch.deadline() == kStart + 11s);
  CHECK(watch.tick(kStart + 11s) == Due::kNothing);
  CHECK(watch.tick(kStart + 12s) == Due::kNothing);
  watch.heard(kStart + 12900ms);  // is no end
  CHECK(watch.tick(kStart + 12999ms) == Due::kNothing);
  CHECK(watch.deadline() == kStart + 13s);
  CHECK(watch.tick(kStart + 13s) == Due::kKillKeeper);
  CHECK(watch.tick(kStart + 13s) == Due::kNothing);
  CHECK(watch.tick(kStart + 14s) == Due::kNothing);
}

TEST_CASE("agent watch: a keeper that no signal ends is given up, not waited for for ever") {
  AgentWatch watch(60s, kStart);
  watch.expect_end(kStart);
  std::vector<int> killed;
  int given_up = 0;
  for (int second = 1; second < 60 && given_up == 0; ++second) {
    const Due due = watch.tick(kStart + second * 1s);
    if (due == Due::kKillKeeper) killed.push_back(second);
    if (due == Due::kGiveUp) given_up = second;
  }
  CHECK(killed == std::vector{3, 6, 9});
  CHECK(given_up == 12);
}

TEST_CASE("agent watch: who still brings something when its end is due has its time anew") {
  AgentWatch watch(60s, kStart);
  watch.renew(kStart, 6s);  // no end is due yet
  watch.expect_end(kStart + 10s);
  for (int second = 11; second < 100; ++second) {
    REQUIRE(watch.tick(kStart + second * 1s) == Due::kNothing);
    watch.renew(kStart + second * 1s + 5ms, 2s);
  }
  CHECK(watch.tick(kStart + 100s) == Due::kNothing);
  CHECK(watch.deadline() == kStart + 101s);
  CHECK(watch.tick(kStart + 101s) == Due::kNothing);
  CHECK(watch.deadline() == kStart + 101'005ms);
  CHECK(watch.tick(kStart + 101'005ms) == Due::kKillKeeper);
}

TEST_CASE("agent watch: the keeper is not killed for the time that hvdrun slept through") {
  AgentWatch watch(60s, kStart);
  watch.expect_end(kStart + 10s);
  CHECK(watch.tick(kStart + 1h) == Due::kNothing);
  CHECK(watch.tick(kStart + 1h + 1s) == Due::kNothing);
  CHECK(watch.tick(kStart + 1h + 2s) == Due::kKillKeeper);
}

TEST_CASE("agent watch: nothing is due once the keeper is gone") {
  AgentWatch watch(2s, kStart);
  watch.expect_end(kStart);
  watch.keeper_gone();
  for (int second = 1; second < 10; ++second)
    REQUIRE(watch.tick(kStart + second * 1s) == Due::kNothing);
}

}  // namespace hvd
