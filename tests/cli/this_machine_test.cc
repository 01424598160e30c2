// Which names are this machine, and how many GPUs a program may use.
#include "cli/this_machine.h"

#include <unistd.h>

#include "tests/support/catch.h"

using namespace hvd;

TEST_CASE("this machine: localhost, loopback, our names and addresses, nothing else") {
  const ThisMachine machine{.names = {"gpu7.lab.example", "Box"},
                            .addresses = {"10.0.0.7", "fe80::7", "2001:db8::7"},
                            .users = {},
                            .gpus = 0};
  for (const char* name : {"localhost",
                           "LOCALHOST",
                           "localhost.",
                           "localhost.localdomain",
                           "ip6-localhost",
                           "ip6-loopback",
                           "localhost6",
                           "127.0.0.1",
                           "127.8.9.1",
                           "127.1",
                           "0.0.0.0",
                           "::",
                           "::1",
                           "0:0:0:0:0:0:0:1",
                           "gpu7.lab.example",
                           "GPU7.lab.example",
                           "gpu7",
                           "box",
                           "Box.",
                           "10.0.0.7",
                           "::ffff:127.0.0.1",
                           "::ffff:10.0.0.7",
                           "2001:db8::7",
                           "2001:0db8:0::0007",
                           "fe80::7%eth0"}) {
    CHECK(is_this_machine(name, machine));
  }
  for (const char* name :
       {"gpu8", "gpu7.lab", "gpu7.other.example", "box.lab.example", "10.0.0.8", "10.0.0.70",
        "128.0.0.1", "::ffff:10.0.0.8", "fe80::8", "localhost2", "127", "gpu", ""}) {
    CHECK_FALSE(is_this_machine(name, machine));
  }
}

TEST_CASE("this machine: without any look, localhost and loopback are known") {
  CHECK(is_this_machine("localhost", {}));
  CHECK(is_this_machine("127.0.0.1", {}));
  CHECK_FALSE(is_this_machine("gpu7", {}));
}

TEST_CASE("this machine: /etc/hosts names loopback and our addresses") {
  const char* text =
      "127.0.0.1 localhost loop # first\n"
      "127.0.1.1\tgpu7.lab.example gpu7\r\n"
      "10.0.0.7 data7\n"
      "10.0.0.8 other\n"
      "# 127.0.0.1 commented\n"
      "\n"
      "::1 ip6-localhost\n"
      "nonsense here\n"
      "127.0.0.2 last";
  CHECK(names_in_hosts_file(text, {"10.0.0.7"}) ==
        std::vector<std::string>{"localhost", "loop", "gpu7.lab.example", "gpu7", "data7",
                                 "ip6-localhost", "last"});
  CHECK(names_in_hosts_file("", {}).empty());
}

TEST_CASE("this machine: /etc/passwd names us by our uid") {
  const char* text =
      "root:x:0:0:root:/root:/bin/bash\n"
      "toor:x:0:0::/root:/bin/sh\n"
      "ann:x:1000:0:Ann,1000:/home/ann:\n"
      "nonsense\n"
      "half:x:1000\n"
      "bob:x:10:0:::";
  CHECK(names_in_passwd(text, 0) == std::vector<std::string>{"root", "toor"});
  CHECK(names_in_passwd(text, 1000) == std::vector<std::string>{"ann"});
  CHECK(names_in_passwd(text, 10) == std::vector<std::string>{"bob"});
  CHECK(names_in_passwd(text, 100).empty());
  CHECK(names_in_passwd("", 0).empty());
}

TEST_CASE("this machine: the look finds our host name and loopback") {
  const ThisMachine machine = look_at_this_machine(std::nullopt);
  char name[256] = "";
  REQUIRE(gethostname(name, sizeof name - 1) == 0);
  CHECK(is_this_machine(name, machine));
  for (const std::string& address : machine.addresses) CHECK(is_this_machine(address, machine));
  CHECK(machine.gpus >= 0);
}
