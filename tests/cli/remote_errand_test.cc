// Errands on many hosts, through a stand-in for ssh.
#include "cli/remote_errand.h"

#include <map>

#include "tests/cli/ssh/ssh_stand_in.h"

namespace hvd {

using namespace std::chrono_literals;

TEST_CASE("remote_errand: at the end of its time a host has failed, with a turn or without") {
  Hosts there;
  there.set("silent", "exec cat >/dev/null");  // until its owner lets go
  JobSpec spec;
  spec.ssh.program = there / "ssh";
  spec.hosts.assign(100, {"silent", "", 1});  // more than are reached at once
  const StartState start{.environment = {"PATH=/usr/local/bin:/usr/bin:/bin"},
                         .directory = {},
                         .named_directory = {},
                         .limits = {}};
  Loop loop;
  std::map<int, std::string> failed;
  RemoteErrand errand(
      loop, spec, start, {"--remote"},
      {.told = [](int, const std::string&) { return true; },
       .failed = [&](int host, const std::string& reason) { failed[host] = reason; }});
  const TimePoint until = Clock::now() + 300ms;
  for (int host = 0; host < 100; ++host)
    errand.start(host, 600s, Deadline::in({}), host == 99 ? until + 300ms : until);
  errand.turn(Clock::now());
  for (; errand.waiting(); errand.turn(Clock::now())) {
    REQUIRE(Clock::now() < until + 60s);
    CHECK((errand.waits_for(0) || Clock::now() >= until));
    loop.turn(errand.next_deadline());
  }
  CHECK(failed.size() == 100);
  for (const auto& [host, reason] : failed) CHECK(reason.starts_with("its time was over"));
}

}  // namespace hvd
