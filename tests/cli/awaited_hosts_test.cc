// What is said of hosts that are waited for: few lines of many hosts.
#include "cli/awaited_hosts.h"

#include "tests/support/catch.h"

namespace hvd {
namespace {

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("awaited hosts: of many that are waited for those that queue are only counted") {
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

TEST_CASE("awaited hosts: who has told of itself is not told of again") {
  const AwaitedHost told{.host = "h1", .state = "agent: cannot reach hvdrun", .told = true};
  CHECK(awaited_lines({told, {"h2", "connecting", ", for 2.0 s"}}) ==
        Lines{"h2: connecting, for 2.0 s"});
}

}  // namespace hvd
