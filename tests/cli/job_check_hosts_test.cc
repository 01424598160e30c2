// What is found out before anything starts of a job with other hosts.
#include "cli/job_check.h"
#include "tests/support/catch.h"
#include "tests/support/few_descriptors.h"

using namespace hvd;

namespace {

JobSpec job(std::vector<std::string> command, std::string directory = "") {
  JobSpec spec;
  spec.size = 2;
  spec.ssh.program = "sh";  // is there
  spec.command = std::move(command);
  spec.directory = std::move(directory);
  return spec;
}

// "127 message", or "ok".
std::string check(JobSpec spec) {
  if (spec.hosts.empty()) spec.hosts = {{"localhost", "", spec.size}};
  const std::vector<std::string> variables = {"PATH=/usr/bin:/bin"};
  const auto refusal = check_job(spec, assign_slots(spec.hosts, spec.size), variables);
  return refusal ? std::to_string(refusal->exit_code) + " " + refusal->message : "ok";
}

const Host kElsewhere{.name = "gpu1", .user = "", .slots = 2, .remote = true};

}  // namespace

TEST_CASE("job check: this machine is looked at where it has ranks, not where it has slots") {
  JobSpec spec = job({"./only-there"}, "/only/there");
  spec.networks = {"no-such0"};
  spec.hosts = {kElsewhere, {"localhost", "", 2}};
  CHECK(check(spec) == "ok");
  spec.size = 3;
  CHECK_THAT(check(spec), Catch::StartsWith("2 ") && Catch::Contains("no-such0"));
  spec.networks.clear();
  CHECK_THAT(check(spec), Catch::StartsWith("2 --wdir"));
  spec.directory = "/";
  CHECK_THAT(check(spec), Catch::StartsWith("127 "));
  spec = job({"true"});
  spec.networks = {"no-such0"};
  spec.hosts = {{"localhost", "", 2}, kElsewhere};
  CHECK(check(spec) == "ok");  // whatever its networks: nobody is to be reached
  spec.size = 3;
  CHECK_THAT(check(spec), Catch::StartsWith("2 ") && Catch::Contains("no-such0"));
}

TEST_CASE("job check: a network by which no other host is reached is 2, wherever ranks are") {
  JobSpec spec = job({"true"});
  for (const char* loopback : {"lo", "127.0.0.0/8"}) {
    spec.networks = {"no-such0", loopback};
    for (const int size : {2, 3}) {
      spec.size = size;
      spec.hosts = {kElsewhere, {"localhost", "", 2}};
      CHECK_THAT(check(spec),
                 Catch::StartsWith("2 --network-interface no-such0," + std::string(loopback) +
                                   ": no other host is reached by it from here, which has "));
    }
    spec.hosts = {{"localhost", "", 3}};
    CHECK(check(spec) == "ok");
  }
}

TEST_CASE("job check: without room for the connections of other hosts nothing begins") {
  JobSpec spec = job({"true"});
  spec.hosts = {{"gpu1", "", 1, true}, {"gpu2", "", 1, true}, {"gpu3", "", 1, true}};
  const auto no_room = [](int needed) {
    return " cannot all be open: Too many open files; hvdrun needs " + std::to_string(needed) +
           " more: raise the limit on open files (ulimit -n)";
  };
  {
    const FewDescriptors few(26);
    CHECK(check(spec) == "ok");
  }
  const FewDescriptors few(25);
  CHECK(check(spec) == "125 the connections to 2 hosts" + no_room(26));
  spec.output_directory = "/tmp/hvd_no_such_folder";
  CHECK(check(spec) ==
        "125 the 4 files of --output-filename and the connections to 2 hosts" + no_room(30));
}

TEST_CASE("job check: what reaches other hosts has to be there, where there are any") {
  JobSpec spec = job({"true"});
  spec.ssh.program = "no-such-ssh";
  CHECK(check(spec) == "ok");
  spec.hosts = {{"gpu1", "", 2, true}};
  CHECK(check(spec) ==
        "125 cannot run \"no-such-ssh\", which is to reach other hosts; install it, "
        "or name another by --ssh-command");
  spec.ssh.program = "ssh -v";
  CHECK_THAT(check(spec),
             Catch::EndsWith("--ssh-command names a program alone: each word more goes "
                             "by an --ssh-arg of its own, as in --ssh-arg=-v"));
  spec.ssh.program = "/";
  CHECK_THAT(check(spec), Catch::StartsWith("125 cannot run"));
  for (const char* program : {"sh", "/bin/sh"}) {
    spec.ssh.program = program;
    CHECK(check(spec) == "ok");
  }
}
