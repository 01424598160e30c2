// The stall report, by literals.
#include "runtime/engine/stall_inspector.h"

#include "tests/support/catch.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {
const TimePoint kStart{1000s};
}

TEST_CASE("stall inspector: warns after the warning time, by missing rank, once per warning time") {
  StallInspector inspector(60s, 0s);
  const std::vector<WaitingName> waiting = {{"loss", 0, {1, 3}}, {"accuracy", 0, {3}}};
  CHECK_FALSE(inspector.inspect(waiting, kStart));
  CHECK_FALSE(inspector.inspect(waiting, kStart + 59s));
  const auto report = inspector.inspect(waiting, kStart + 60s);
  REQUIRE(report);
  CHECK_FALSE(report->shut_down);
  CHECK_THAT(report->text, Catch::Contains("more than 60 seconds") &&
                               Catch::EndsWith("Missing ranks:\n1: [loss]\n3: [accuracy, loss]"));
  CHECK_FALSE(inspector.inspect(waiting, kStart + 119s));
  CHECK(inspector.inspect(waiting, kStart + 120s));
}

TEST_CASE("stall inspector: what goes on is forgotten, another use of the name starts anew") {
  StallInspector inspector(60s, 0s);
  const std::vector<WaitingName> first = {{"loss", 0, {1}}}, second = {{"loss", 1, {1}}};
  CHECK_FALSE(inspector.inspect(first, kStart));
  CHECK_FALSE(inspector.inspect(second, kStart + 60s));
  CHECK_FALSE(inspector.inspect({}, kStart + 100s));
  CHECK_FALSE(inspector.inspect(second, kStart + 130s));
  CHECK(inspector.inspect(second, kStart + 190s));
}

TEST_CASE("stall inspector: what is not looked at again has not waited on") {
  StallInspector inspector(10s, 20s);
  std::vector<WaitingName> waiting = {{"loss", 0, {1}, kStart}};
  CHECK_FALSE(inspector.inspect(waiting, kStart));
  CHECK_FALSE(inspector.inspect(waiting, kStart + 60s));
  waiting[0].seen = kStart + 12s;
  const auto report = inspector.inspect(waiting, kStart + 61s);
  REQUIRE(report);
  CHECK_FALSE(report->shut_down);
}

TEST_CASE("stall inspector: at most six names a rank") {
  StallInspector inspector(1500ms, 0s);
  std::vector<WaitingName> waiting;
  for (char name = 'a'; name < 'h'; ++name) waiting.push_back({std::string(1, name), 0, {0}});
  inspector.inspect(waiting, kStart);
  const auto report = inspector.inspect(waiting, kStart + 2s);
  REQUIRE(report);
  CHECK_THAT(report->text, Catch::Contains("than 1.500 seconds") &&
                               Catch::EndsWith("\n0: [a, b, c, d, e, f ...]"));
}

TEST_CASE("stall inspector: shuts down after the shutdown time and marks who was over it") {
  StallInspector inspector(10s, 30s);
  std::vector<WaitingName> waiting = {{"loss", 0, {1}}};
  inspector.inspect(waiting, kStart);
  waiting.push_back({"other", 0, {2}});
  CHECK_FALSE(inspector.inspect(waiting, kStart + 9s));
  REQUIRE(inspector.inspect(waiting, kStart + 25s));
  const auto report = inspector.inspect(waiting, kStart + 30s);  // not held back by the last one
  REQUIRE(report);
  CHECK(report->shut_down);
  CHECK(report->missing == std::vector<int>{1});
  CHECK_THAT(report->text, Catch::Contains("\n1!: [loss]\n2: [other]\n") &&
                               Catch::Contains("more than 30 seconds"));
}

TEST_CASE("stall inspector: off says nothing; a shutdown time below the warning time is kept") {
  StallInspector off(0s, 0s);
  const std::vector<WaitingName> waiting = {{"loss", 0, {1}}};
  CHECK_FALSE(off.inspect(waiting, kStart));
  CHECK_FALSE(off.inspect(waiting, kStart + 100s));
  StallInspector early(10s, 5s);
  CHECK_FALSE(early.inspect(waiting, kStart));
  CHECK_FALSE(early.inspect(waiting, kStart + 4s));
  const auto report = early.inspect(waiting, kStart + 5s);
  REQUIRE(report);
  CHECK(report->shut_down);
  CHECK_THAT(report->text, Catch::Contains("for more than 5 seconds. Either"));
}

TEST_CASE("stall inspector: what nobody is known to be missing in is told beside, with its age") {
  StallInspector inspector(10s, 30s);
  std::vector<WaitingName> waiting = {{"rank 2, connecting", 0, {}}};
  inspector.inspect(waiting, kStart);
  const auto alone = inspector.inspect(waiting, kStart + 11s);
  REQUIRE(alone);
  CHECK_THAT(alone->text, Catch::EndsWith("not known:\nrank 2, connecting: for 11 seconds") &&
                              !Catch::Contains("Missing ranks"));
  waiting.push_back({"loss", 0, {1}});
  inspector.inspect(waiting, kStart + 12s);
  const auto both = inspector.inspect(waiting, kStart + 25s);
  REQUIRE(both);
  CHECK_THAT(both->text, Catch::Contains("Missing ranks:\n1: [loss]\nWhat is under way") &&
                             Catch::EndsWith("rank 2, connecting: for 25 seconds"));
  const auto last = inspector.inspect(std::span(waiting).first(1), kStart + 30s);
  REQUIRE(last);
  CHECK(last->shut_down);
  CHECK(last->missing.empty());
  CHECK(last->under_way == "rank 2, connecting");
  CHECK_THAT(last->text, Catch::EndsWith("more than 30 seconds: the job is shut down"));
}

TEST_CASE("stall inspector: a shutdown time counts without warnings before") {
  StallInspector inspector(0s, 30s);
  const std::vector<WaitingName> waiting = {{"loss", 0, {1}}};
  CHECK_FALSE(inspector.inspect(waiting, kStart));
  CHECK_FALSE(inspector.inspect(waiting, kStart + 29s));
  const auto report = inspector.inspect(waiting, kStart + 30s);
  REQUIRE(report);
  CHECK(report->shut_down);
}
