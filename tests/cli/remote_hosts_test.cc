// What is said of hosts that have failed, and of those that are waited for: few lines of many
// hosts.
#include "cli/remote_hosts.h"

#include "tests/support/catch.h"

namespace hvd {
namespace {

using Lines = std::vector<std::string>;

std::vector<Host> named(int count) {
  std::vector<Host> hosts;
  for (int i = 0; i < count; ++i) hosts.push_back({"h" + std::to_string(i), "", 1, true});
  return hosts;
}

}  // namespace

TEST_CASE("remote_hosts: each host that has failed is named, the first one last") {
  CHECK(no_agent_lines({{2, "asleep"}, {0, "away"}}, named(3)) ==
        Lines{"no agent on h0: away", "no agent on h2: asleep"});
}

TEST_CASE("remote_hosts: of many that have failed ten have a line, and twenty more their names") {
  std::vector<FailedHost> failed;
  for (int i = 0; i < 64; ++i) failed.push_back({i, "away"});
  const Lines lines = no_agent_lines(failed, named(64));
  REQUIRE(lines.size() == 11);
  CHECK(lines.back() == "no agent on h0: away");
  CHECK_THAT(lines.front(), Catch::Matchers::StartsWith("no agent on 54 more hosts: h10, h11, ") &&
                                Catch::Matchers::EndsWith(", h29, …"));
}

TEST_CASE("remote_hosts: of many that are waited for those that queue are only counted") {
  std::vector<AwaitedHost> hosts;
  for (int i = 0; i < 300; ++i)
    hosts.push_back({"h" + std::to_string(i), i < 290 ? "waiting for its turn" : "connecting",
                     ", for 2.0 s", i < 290});
  hosts.push_back({"late", "copying", " hvdrun, 1 of 19 MB, for 2.0 s"});
  const Lines lines = awaited_lines(hosts);
  REQUIRE(lines.size() == 11);
  CHECK(lines.front() == "h290: connecting, for 2.0 s");
  CHECK(lines.back() == "291 more hosts: 1 copying, 290 waiting for its turn");
  hosts.resize(2);
  CHECK(awaited_lines(hosts) ==
        Lines{"h0: waiting for its turn, for 2.0 s", "h1: waiting for its turn, for 2.0 s"});
}

}  // namespace hvd
