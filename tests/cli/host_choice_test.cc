// Which hosts and how many ranks a job gets.
#include "cli/host_choice.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "runtime/base/error.h"
#include "tests/support/catch.h"

using namespace hvd;

namespace {

const ThisMachine kBox{
    .names = {"box"}, .addresses = {"10.0.0.7"}, .users = {"anna", "ann"}, .gpus = 0};

ThisMachine with_gpus(int count) {
  ThisMachine machine = kBox;
  machine.gpus = count;
  return machine;
}

// "name:slots,... size", and then the notes.
std::string choose(std::string_view list, int size, const ThisMachine& machine = kBox) {
  const std::vector<std::string> command = {"./train", "--epochs", "3"};
  const HostChoice choice = choose_hosts(
      list.empty() ? std::vector<GivenHost>{} : parse_host_list(list), size, machine, command);
  std::string out;
  for (const Host& host : choice.hosts) {
    out += (out.empty() ? "" : ",") + host.name + ":" + std::to_string(host.slots);
  }
  out += " " + std::to_string(choice.size);
  for (const std::string& note : choice.notes) out += " | " + note;
  return out;
}

}  // namespace

TEST_CASE("host choice: -np alone means this machine") {
  CHECK(choose("", 3) == "localhost:3 3");
  CHECK(choose("", 3, with_gpus(8)) == "localhost:3 3");
}

TEST_CASE("host choice: without -np all slots of the hosts count") {
  CHECK(choose("localhost:4", 0) == "localhost:4 4");
  CHECK(choose("localhost:4", 2) == "localhost:4 2");
  CHECK(choose("localhost", 0) == "localhost:1 1");
  CHECK(choose("localhost", 0, with_gpus(8)) == "localhost:8 8");
  CHECK(choose("box", 3, with_gpus(4)) == "box:4 3");
}

TEST_CASE("host choice: without -np and hosts the GPUs count, and without those an example helps") {
  CHECK(choose("", 0, with_gpus(8)) ==
        "localhost:8 8 | -np is not given: starting 8 ranks, one for each GPU of this machine");
  CHECK(choose("", 0, with_gpus(1)) ==
        "localhost:1 1 | -np is not given: starting 1 rank, for the GPU of this machine");
  CHECK_THROWS_WITH(choose("", 0),
                    "how many ranks to start is not said, and there is no GPU here to count; try: "
                    "hvdrun -np 2 ./train --epochs 3");
}

TEST_CASE("host choice: the example can be typed as it stands, unless it is long") {
  const auto example = [](const std::vector<std::string>& command) {
    try {
      choose_hosts({}, 0, kBox, command);
    } catch (const Error& error) {
      const std::string text = error.what();
      return text.substr(text.find("try: ") + 5);
    }
    return std::string("no error");
  };
  CHECK(example({"python", "train.py", "a b"}) == "hvdrun -np 2 python train.py 'a b'");
  CHECK(example({"sh", "-c", "x; y"}) == "hvdrun -np 2 sh -c 'x; y'");
  CHECK(example({"./x", std::string(500, 'x')}) == "hvdrun -np 2 ./x ...");
  CHECK(example({"a\nb"}) == "hvdrun -np 2 $'a\\x0ab'");
}

TEST_CASE("host choice: entries that are this machine become one host, and that is said") {
  CHECK(choose("localhost:2,localhost:2", 4) ==
        "localhost:4 4 | host \"localhost\" is given 2 times: its slots are added, 4 together");
  CHECK(choose("box:2,localhost:3,127.0.0.1:1", 0) ==
        "box:6 6 | hosts \"box\" and \"localhost\" are both this machine: their slots are added, 6 "
        "together");
  CHECK(choose("box,10.0.0.7", 0, with_gpus(2)) ==
        "box:4 4 | hosts \"box\" and \"10.0.0.7\" are both this machine: their slots are added, 4 "
        "together");
}

TEST_CASE("host choice: another machine is not supported yet, unless it gets no rank") {
  CHECK_THROWS_WITH(choose("localhost:2,gpu8:2", 2),
                    "host \"gpu8\" is not this machine, and other hosts are not supported yet; use "
                    "localhost");
  try {
    choose("gpu8", 1);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUnsupported);
  }
  CHECK(choose("gpu8:0,localhost:2", 0) == "gpu8:0,localhost:2 2");
}

TEST_CASE("host choice: only our own user may be named") {
  CHECK(choose("ann@localhost:2", 0) == "localhost:2 2");
  CHECK_THROWS_WITH(choose("bob@localhost:2", 0),
                    "host \"bob@localhost\" is this machine, and starting ranks as another user is "
                    "not supported yet; leave the user out");
}

TEST_CASE("host choice: no slots and too many are errors") {
  CHECK_THROWS_WITH(choose("localhost:0", 0),
                    "the hosts have no slots at all; write localhost:2 for two ranks");
  CHECK_THROWS_WITH(choose("localhost:60000,localhost:60000", 2),
                    "this machine is given 120000 slots; a host has at most 65535");
}

TEST_CASE("host choice: a host file is read, and one that cannot be is named") {
  char path[] = "/tmp/hvd_hosts_XXXXXX";
  const int file = mkstemp(path);
  REQUIRE(file >= 0);
  close(file);
  std::ofstream(path) << "localhost slots=3\n";
  CommandLine line;
  line.host_file = path;
  find_hosts(line);
  CHECK(line.spec.size == 3);
  CHECK(line.spec.hosts == std::vector<Host>{{"localhost", "", 3}});

  std::ofstream(path) << "localhost slots=three\n";
  CHECK_THROWS_WITH(find_hosts(line), Catch::StartsWith(std::string(path) + ":1: "));
  std::ofstream(path) << std::string(2 << 20, '\n');
  CHECK_THROWS_WITH(
      find_hosts(line),
      std::string(path) + ": a host file has at most 1 MiB; name another by --hostfile");
  unlink(path);
  CHECK_THROWS_WITH(find_hosts(line),
                    "the host file \"" + std::string(path) +
                        "\" cannot be read: No such file or directory; check the path "
                        "behind --hostfile");
  line.host_file = "/";
  CHECK_THROWS_WITH(
      find_hosts(line),
      "the host file \"/\" cannot be read: Is a directory; check the path behind --hostfile");
}
