// What is said of hosts that have failed: few lines of many hosts.
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
  std::vector<Host> hosts = named(3);
  hosts[2].user = "ann";
  CHECK(no_agent_lines({{2, "asleep"}, {0, "away"}}, hosts) ==
        Lines{"no agent on h0: away", "no agent on ann@h2: asleep"});
}

TEST_CASE("remote_hosts: a reason of this machine's is no host's, and said once") {
  const std::string ours = "--ship: \"data\" has changed since hvdrun read it";
  CHECK(no_agent_lines({{1, ours, true}, {2, "away"}, {0, ours, true}}, named(3)) ==
        Lines{"no agent on h2: away", ours});
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

}  // namespace hvd
