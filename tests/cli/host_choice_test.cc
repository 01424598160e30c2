// Which hosts and how many ranks a job gets.
#include "cli/host_choice.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <utility>

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
std::string choose(std::string_view list, int size, const ThisMachine& machine = kBox,
                   int named_gpus = 0) {
  const std::vector<std::string> command = {"./train", "--epochs", "3"};
  const HostChoice choice =
      choose_hosts(list.empty() ? std::vector<GivenHost>{} : parse_host_list(list), size, machine,
                   command, named_gpus);
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

TEST_CASE("host choice: whether this machine's GPUs were counted is known") {
  const std::vector<std::string> command = {"./train"};
  const auto by_gpus = [&](std::string_view list, int size, int gpus, int named = 0) {
    return choose_hosts(list.empty() ? std::vector<GivenHost>{} : parse_host_list(list), size,
                        with_gpus(gpus), command, named)
        .by_gpus;
  };
  CHECK(by_gpus("", 0, 2));
  CHECK(by_gpus("", 0, 0, 2));
  CHECK(by_gpus("gpu8:1,box", 0, 2));
  CHECK_FALSE(by_gpus("", 2, 2));
  CHECK_FALSE(by_gpus("box:2,gpu8", 0, 2));
  CHECK_FALSE(by_gpus("box", 0, 0));
}

TEST_CASE("host choice: where GPUs are named these count, on each host without slots") {
  CHECK(choose("", 0, with_gpus(8), 2) ==
        "localhost:2 2 | -np is not given: starting 2 ranks, one for each GPU of --devices");
  CHECK(choose("", 0, kBox, 1) ==
        "localhost:1 1 | -np is not given: starting 1 rank, for the GPU of --devices");
  CHECK(choose("", 3, kBox, 2) == "localhost:3 3");
  CHECK(choose("box,gpu8,gpu9:1", 0, with_gpus(8), 2) == "box:2,gpu8:2,gpu9:1 5");
}

TEST_CASE("host choice: without -np and hosts the GPUs count, and without those an example helps") {
  CHECK(choose("", 0, with_gpus(8)) ==
        "localhost:8 8 | -np is not given: starting 8 ranks, one for each GPU of this machine");
  CHECK(choose("", 0, with_gpus(1)) ==
        "localhost:1 1 | -np is not given: starting 1 rank, for the GPU of this machine");
  CHECK_THROWS_WITH(choose("", 0),
                    "how many ranks to start is not said, and there is no GPU here to count; try: "
                    "hvdrun -np 2 ./train --epochs 3");
  const std::vector<std::string> behind = {"python", "-np", "2", "train.py"};
  CHECK_THROWS_WITH(choose_hosts({}, 0, kBox, behind),
                    "how many ranks to start is not said: -np stands behind the command "
                    "\"python\", which gets it; put hvdrun's options first, as in "
                    "hvdrun -np 2 python");
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

TEST_CASE("host choice: other machines are remote hosts, each once") {
  CHECK(choose("localhost:2,gpu8:2", 3) == "localhost:2,gpu8:2 3");
  CHECK(choose("gpu8,ann@gpu8:2", 0, with_gpus(4)) == "gpu8:1,gpu8:2 3");
  CHECK(choose("gpu8:2,box:1,gpu8:3", 0) ==
        "gpu8:5,box:1 6 | host \"gpu8\" is given more than once: its slots are added, 5 together");
  CHECK(choose("gpu8:0,localhost:2", 0) == "gpu8:0,localhost:2 2");
  CHECK_THROWS_WITH(choose("gpu8:60000,gpu8:60000", 2),
                    "host \"gpu8\" is given 120000 slots; a host has at most 65535");
  const std::vector<std::string> command = {"true"};
  const HostChoice both = choose_hosts(parse_host_list("localhost:1,gpu8:1"), 0, kBox, command);
  CHECK_FALSE(both.hosts[0].remote);
  CHECK(both.hosts[1].remote);
}

TEST_CASE("host choice: another machine without a count has a slot for each GPU that it tells") {
  const std::vector<std::string> command = {"true"};
  const auto choose = [&](std::string_view list, int size) {
    return choose_hosts(parse_host_list(list), size, with_gpus(8), command);
  };
  const HostChoice open = choose("gpu1,box:1,gpu2:2,gpu1", 0);
  CHECK(open.hosts ==
        std::vector<Host>{{"gpu1", "", 2, true, 2}, {"box", "", 1}, {"gpu2", "", 2, true}});
  CHECK((open.size == 5 && open.size_open));
  CHECK(open.notes ==
        std::vector<std::string>{"host \"gpu1\" is given more than once: its slots are added"});
  CHECK_FALSE(choose("gpu1,gpu2", 2).size_open);
  CHECK_FALSE(choose("gpu1:2,box", 0).size_open);
  for (const auto& [gpus, slots] : std::map<int, int>{{0, 3}, {1, 3}, {4, 9}}) {
    Host host{"gpu1", "", 3, true, 2};  // one that was counted, and two that were not
    count_slots(host, gpus);
    CHECK(host == Host{"gpu1", "", slots, true});
    count_slots(host, 7);
    CHECK(host.slots == slots);
  }
}

TEST_CASE("host choice: a plan gives ranks to all hosts that may get some") {
  const auto planned = [](std::vector<Host> hosts, int size) {
    std::string out;
    for (const Slot& slot : plan_slots(hosts, size)) out += std::to_string(slot.host);
    return out;
  };
  const Host gpu1{"gpu1", "", 1, true, 1}, gpu2{"gpu2", "", 1, true, 1}, box{"box", "", 2};
  CHECK(planned({gpu1, box, gpu2}, 3) == "011");
  CHECK(planned({gpu1, box, gpu2}, 4) == "0112");
  CHECK(planned({gpu1, box, gpu2}, 7) == "0001122");
  CHECK_THROWS_WITH(planned({box, {"gpu1", "", 1, true}}, 4),
                    Catch::Contains("the 2 hosts offer 3 slots together but -np 4 was asked"));
  std::vector<Host> many(300, gpu1);  // of more ranks than one host takes
  CHECK(plan_slots(many, 2000).size() == 2000);
}

TEST_CASE("host choice: another user of this machine is a remote host") {
  CHECK(choose("ann@localhost:2", 0) == "localhost:2 2");
  const std::vector<std::string> command = {"true"};
  const HostChoice choice =
      choose_hosts(parse_host_list("bob@localhost:2,localhost:1"), 0, kBox, command);
  CHECK(choice.hosts ==
        std::vector<Host>{{"localhost", "bob", 2, true}, {"localhost", "", 1, false}});
}

namespace {

// Where ranks are, "0 0 2", and then the notes. Hosts are a:1, b:2, c:3, …; `alike` has a letter
// for each, equal ones for one identity, '-' for none; a capital one is this machine.
std::string settle(const std::string& alike, int size) {
  std::vector<Host> hosts;
  std::vector<std::optional<HostIdentity>> identities;
  for (size_t i = 0; i < alike.size(); ++i) {
    const bool here = alike[i] >= 'A' && alike[i] <= 'Z';
    hosts.push_back({std::string(1, char('a' + i)), "", int(i) + 1, !here});
    identities.emplace_back();
    if (alike[i] != '-')
      identities.back() = HostIdentity{.boot = "x", .network = uint64_t(alike[i] | 32), .user = 1};
  }
  const SettledHosts settled = settle_hosts(hosts, identities, size);
  std::string out;
  for (const Slot& slot : settled.slots) {
    out += (out.empty() ? "" : " ") + std::to_string(slot.host);
    if (slot.world.host != hosts[size_t(slot.host)].name) out += "?";
  }
  for (const std::string& note : settled.notes) out += " | " + note;
  return out;
}

}  // namespace

TEST_CASE("host choice: hosts that are one machine become one where the first is named") {
  CHECK(settle("xyz", 6) == "0 1 1 2 2 2");
  CHECK(settle("xyx", 6) ==
        "0 0 0 0 1 1 | hosts \"a\" and \"c\" are one machine: their slots are added, 4 together");
  CHECK(settle("xyx", 4) ==
        "0 0 0 0 | hosts \"a\" and \"c\" are one machine: their slots are added, 4 together");
  CHECK(settle("xxx", 6) ==
        "0 0 0 0 0 0 | hosts \"a\" and \"b\" are one machine: their slots are added, 3 together | "
        "hosts \"a\" and \"c\" are one machine: their slots are added, 6 together");
}

TEST_CASE("host choice: this machine is the one that several names of it come to") {
  CHECK(settle("xyX", 6) ==
        "2 2 2 2 1 1 | hosts \"a\" and \"c\" are one machine: their slots are added, 4 together");
  CHECK(settle("Xyx", 6) ==
        "0 0 0 0 1 1 | hosts \"a\" and \"c\" are one machine: their slots are added, 4 together");
}

TEST_CASE("host choice: users of one machine are told apart, and that each counts for itself") {
  const auto notes = [](const HostIdentity& one, const HostIdentity& other) {
    const std::vector<Host> hosts = {{"h1", "root", 1, true}, {"h1", "", 1, true}};
    return settle_hosts(hosts, std::vector<std::optional<HostIdentity>>{one, other}, 2).notes;
  };
  const HostIdentity root{.boot = "x", .network = 1, .mounts = 2, .processes = 3, .user = 0};
  HostIdentity ann = root, container = root;
  CHECK(notes(root, root) ==
        std::vector<std::string>{
            "hosts \"root@h1\" and \"h1\" are one machine: their slots are added, 2 together"});
  ann.user = 4;
  CHECK(notes(root, ann) ==
        std::vector<std::string>{"hosts \"root@h1\" and \"h1\" are two users of one machine: each "
                                 "counts its LOCAL_RANK from 0"});
  container.user = 4;
  container.processes = 9;
  CHECK(notes(root, container).empty());
}

TEST_CASE("host choice: a host that was not needed stays out, and one that is unknown is its own") {
  CHECK(settle("xy-", 3) == "0 1 1");
  CHECK_THROWS(settle("xy-", 4));
  const HostIdentity unknown{.network = 1};
  CHECK_FALSE(is_one_host(unknown, unknown));
  CHECK_FALSE(is_one_network(unknown, unknown));
}

TEST_CASE("host choice: a user, a namespace, a boot make another host") {
  const HostIdentity one{.boot = "x", .network = 1, .mounts = 2, .processes = 3, .user = 4};
  for (int part = 0; part < 5; ++part) {
    HostIdentity other = one;
    if (part == 0) other.boot = "y";
    if (part == 1) other.network = 9;
    if (part == 2) other.mounts = 9;
    if (part == 3) other.processes = 9;
    if (part == 4) other.user = 9;
    CHECK_FALSE(is_one_host(one, other));
    CHECK(is_one_network(one, other) == (part > 1));
  }
  const HostIdentity here = look_at_this_host();
  CHECK(is_one_host(here, look_at_this_host()));
  CHECK(here.boot.size() == 36);
}

TEST_CASE("host choice: hosts of one machine share its CPUs, and are numbered by their ranks") {
  const auto slots_of = [](std::initializer_list<std::pair<int, int>> counts) {
    std::vector<Slot> slots;
    for (const auto& [host, count] : counts) slots.insert(slots.end(), size_t(count), {host, {}});
    return slots;
  };
  HostIdentity one{"a machine", 1}, same{"a machine", 2}, other{"another", 1}, unknown;
  using Places = std::map<int, HostPlace>;
  CHECK(places_of(slots_of({{4, 2}, {1, 3}, {2, 1}, {7, 5}}),
                  {{1, one}, {2, other}, {4, same}, {5, one}, {7, other}}) ==
        Places{{4, {0, 5}}, {1, {1, 5}}, {2, {2, 6}}, {7, {3, 6}}});
  CHECK(places_of(slots_of({{0, 2}, {1, 3}}), {{0, unknown}, {1, unknown}}) ==
        Places{{0, {0, 2}}, {1, {1, 3}}});
  CHECK(places_of(slots_of({{0, 2}, {1, 3}}), {{1, one}}) == Places{{1, {0, 3}}});
}

// With a look at every host for every rank of each host this would take an hour.
TEST_CASE("host choice: the places of 4096 hosts with 32 ranks each are found at once") {
  constexpr int kHosts = 4096, kRanks = 32;
  std::vector<Slot> slots;
  std::map<int, HostIdentity> identities;
  for (int host = 0; host < kHosts; ++host) {
    identities[host].boot = std::to_string(host / 2);
    slots.insert(slots.end(), kRanks, {host, {}});
  }
  const std::map<int, HostPlace> places = places_of(slots, identities);
  REQUIRE(places.size() == kHosts);
  for (const auto& [host, place] : places) REQUIRE(place == HostPlace{host, 2 * kRanks});
}

TEST_CASE("host choice: a remote host counts only where it has ranks") {
  const std::vector<Host> hosts = {{"box", "", 2}, {"gpu1", "", 2, true}};
  CHECK_FALSE(has_remote_ranks(hosts, assign_slots(hosts, 2)));
  CHECK(has_remote_ranks(hosts, assign_slots(hosts, 3)));
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
      std::string(path) +
          " is longer than the 1 MiB of the longest host file; name another by --hostfile");
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
