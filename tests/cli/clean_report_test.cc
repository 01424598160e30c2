// What a host's own word on a job is worth.
#include "cli/agent/clean_host.h"

#include "tests/support/catch.h"

using namespace hvd;

TEST_CASE("remote cleaning: nobody lives there if that very host says so") {
  const HostIdentity host{.boot = "one", .network = 1, .mounts = 2, .processes = 3, .user = 4};
  proto::CleanReport report;
  report.set_nobody(true);
  report.set_boot("one");
  report.set_processes(3);
  CHECK(nobody_lives(report, host));
  report.set_processes(4);  // in a container of it
  CHECK_FALSE(nobody_lives(report, host));
  report.set_processes(3);
  report.set_boot("two");
  CHECK_FALSE(nobody_lives(report, host));
  report.set_boot("");
  CHECK_FALSE(nobody_lives(report, HostIdentity{.processes = 3}));
  report.set_boot("one");
  report.set_nobody(false);
  CHECK_FALSE(nobody_lives(report, host));
}
