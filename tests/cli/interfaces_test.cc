// Which of a host's addresses is meant by a name, a network or an address.
#include "cli/interfaces.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "tests/support/catch.h"

using namespace hvd;

namespace {

const std::vector<InterfaceAddress> kHost = {{"lo", "127.0.0.1"},
                                             {"docker0", "172.17.0.1"},
                                             {"eth0", "10.77.0.1"},
                                             {"eth10", "10.78.3.9"},
                                             {"eth0", "fd77::1"}};

// "eth0 10.77.0.1", more with commas, or "none".
std::string found(std::string_view networks) {
  std::string text;
  for (const InterfaceAddress& one :
       find_network(kHost, parse_networks("--network-interface", networks)))
    text += (text.empty() ? "" : ", ") + one.interface + " " + one.address;
  return text.empty() ? "none" : text;
}

}  // namespace

TEST_CASE("interfaces: by name, by network, by address") {
  CHECK(found("eth0") == "eth0 10.77.0.1, eth0 fd77::1");
  CHECK(found("eth1") == "none");  // no beginning of a name is one
  CHECK(found("10.0.0.0/8") == "eth0 10.77.0.1, eth10 10.78.3.9");
  CHECK(found("10.78.0.0/15") == "eth10 10.78.3.9");
  CHECK(found("10.76.0.0/15") == "eth0 10.77.0.1");
  CHECK(found("10.78.3.8/31") == "eth10 10.78.3.9");
  CHECK(found("10.78.3.9") == "eth10 10.78.3.9");
  CHECK(found("10.78.3.8") == "none");
  CHECK(found("fd00::/8") == "eth0 fd77::1");
  CHECK(found("::/0") == "eth0 fd77::1");
  CHECK(found("0.0.0.0/1") == "lo 127.0.0.1, eth0 10.77.0.1, eth10 10.78.3.9");
}

TEST_CASE("interfaces: what is named first and is there counts") {
  CHECK(found("ib0,eth10,eth0") == "eth10 10.78.3.9");
  CHECK(found("192.168.0.0/16,fd00::/8") == "eth0 fd77::1");
}

TEST_CASE("interfaces: nonsense is refused") {
  for (const char* text : {"", ",", "eth0,", "10.0.0.0/33", "10.0.0.0/", "fd00::/129", "10.0.0/-1",
                           "eth0;x", "a name", "an_interface_name_too_long"})
    CHECK_THROWS_AS(parse_networks("--network-interface", text), Error);
  CHECK_THROWS_WITH(parse_networks("--network-interface", "eth0,10.0.0.0/33"),
                    "--network-interface takes the name of an interface, a network such as "
                    "10.0.0.0/8 or an address, not \"10.0.0.0/33\"");
}

TEST_CASE("interfaces: what other hosts cannot mean by it") {
  for (const char* here : {"127.0.0.1", "127.0.1.1", "::1", "fe80::1"})
    CHECK_FALSE(may_lead_here(here));
  for (const char* there : {"10.0.0.1", "172.17.0.1", "169.254.3.1", "fd00::1"})
    CHECK(may_lead_here(there));
}

TEST_CASE("interfaces: what a host has instead") {
  CHECK(no_such_network(std::span(kHost).subspan(1, 2), std::vector<std::string>{"ib0", "ib1"}) ==
        "--network-interface ib0,ib1: no such network here, which has docker0 172.17.0.1 and eth0 "
        "10.77.0.1");
  CHECK(no_such_network({}, std::vector<std::string>{"ib0"}) ==
        "--network-interface ib0: no such network here");
}

TEST_CASE("interfaces: a network that is there and leads to no other host") {
  CHECK(no_such_network(std::span(kHost).subspan(0, 2), std::vector<std::string>{"lo"}) ==
        "--network-interface lo: no other host is reached by it from here, which has lo 127.0.0.1 "
        "and docker0 172.17.0.1");
}

TEST_CASE("interfaces: this host has loopback") {
  const auto all = look_at_interfaces();
  CHECK(std::find(all.begin(), all.end(), InterfaceAddress{"lo", "127.0.0.1"}) != all.end());
}

TEST_CASE("interfaces: loopback has the name that all know") {
  CHECK(loopback_interface() == "lo");
}
