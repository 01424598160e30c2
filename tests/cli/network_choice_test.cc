// Which addresses a host offers, who tries them, and which is chosen.
#include "cli/network_choice.h"

#include <algorithm>
#include <set>

#include "tests/support/catch.h"

namespace hvd {
namespace {

const std::vector<InterfaceAddress> kHost = {
    {"lo", "127.0.0.1"},        {"docker0", "172.17.0.1", 10000}, {"eth0", "10.77.0.1", 10000},
    {"eth0", "fd77::1", 10000}, {"usb0", "169.254.3.1"},          {"ib0", "10.78.0.1", 100000}};

// "docker0 172.17.0.1, eth0 …"; ssh's first, with a star.
std::string offered(const std::vector<std::string>& networks, std::string_view by_ssh) {
  std::string text;
  for (const Offer& one : offers_of(kHost, networks, by_ssh))
    text += (text.empty() ? "" : ", ") + one.at.interface + " " + one.at.address +
            (one.by_ssh ? "*" : "");
  return text;
}

Offer good(const std::string& interface, int speed_mbps, int64_t round_trip_us,
           bool by_ssh = false) {
  Offer offer{{interface, interface + "'s", speed_mbps}, by_ssh};
  offer.reached = 3;
  offer.round_trip_us = round_trip_us;
  return offer;
}

Offer bad(const std::string& interface, int speed_mbps, bool by_ssh = false) {
  Offer offer{{interface, interface + "'s", speed_mbps}, by_ssh};
  offer.reached = offer.awaited = offer.failed = 1;
  offer.failure = "not from h3: Connection refused";
  return offer;
}

Offer open(const std::string& interface, int speed_mbps, bool by_ssh = false) {
  Offer offer{{interface, interface + "'s", speed_mbps}, by_ssh};
  offer.reached = 2;
  offer.awaited = 1;
  return offer;
}

// "eth0", "eth0?" while something could still change it, "none", "?" or "eth0" when not waiting.
std::string chosen(const std::vector<Offer>& offers, bool waits = true) {
  const Choice choice = choose(offers, waits);
  const std::string name = choice.place < 0 ? "none" : offers.at(size_t(choice.place)).at.interface;
  return name + (choice.final ? "" : "?");
}

}  // namespace

TEST_CASE("network choice: a host offers what others can mean, where ssh reaches it first") {
  CHECK(offered({}, "") == "ib0 10.78.0.1, docker0 172.17.0.1, eth0 10.77.0.1, eth0 fd77::1");
  CHECK(offered({}, "fd77::1") ==
        "eth0 fd77::1*, ib0 10.78.0.1, docker0 172.17.0.1, eth0 10.77.0.1");
  CHECK(offered({}, "169.254.3.1").starts_with("usb0 169.254.3.1*, ib0 10.78.0.1, docker0"));
  CHECK(offered({}, "127.0.0.1").starts_with("ib0 10.78.0.1, "));
  CHECK(offered({}, "192.168.0.9").starts_with("ib0 10.78.0.1, "));  // translated on the way
  CHECK(offered({"ib7", "eth0"}, "fd77::1") == "eth0 fd77::1*, eth0 10.77.0.1");
  CHECK(offered({"10.78.0.0/16"}, "fd77::1") == "ib0 10.78.0.1");
  CHECK(offered({"lo"}, "") == "lo 127.0.0.1");  // as it was asked for
  CHECK(offered({"ib7"}, "fd77::1").empty());
  std::vector<InterfaceAddress> many;
  for (int i = 0; i < 40; ++i) many.push_back({"eth0", "10.0.0." + std::to_string(i)});
  many[20].speed_mbps = 1000;
  many[30].speed_mbps = 100000;
  many[0].speed_mbps = kTunnelMbps;
  const std::vector<Offer> offers = offers_of(many, {}, "10.0.0.39");
  CHECK(offers.size() == kOffersMax);
  CHECK(offers[0].at.address == "10.0.0.39");
  CHECK(offers[1].at.address == "10.0.0.30");
  CHECK(offers[2].at.address == "10.0.0.20");
  CHECK(offers[3].at.address == "10.0.0.1");
}

TEST_CASE("network choice: up to 16 hosts each tries all others") {
  for (const int hosts : {1, 2, 3, 16}) {
    const auto tries = who_tries_whom(hosts, hosts / 2);
    REQUIRE(int(tries.size()) == hosts);
    for (int who = 0; who < hosts; ++who) {
      CHECK(int(tries[size_t(who)].size()) == hosts - 1);
      CHECK(std::count(tries[size_t(who)].begin(), tries[size_t(who)].end(), who) == 0);
    }
  }
}

TEST_CASE("network choice: of more hosts those are tried that collectives link, and rank 0's") {
  CHECK(who_tries_whom(32, 0)[3] == std::vector{0, 1, 2, 4, 5, 7, 11, 19, 27, 31});
  CHECK(who_tries_whom(100, 50)[0] ==
        std::vector{1, 2, 4, 8, 16, 32, 36, 50, 64, 68, 84, 92, 96, 98, 99});
  for (const int hosts : {17, 18, 100, 512, 513}) {
    const int first = hosts - 2;
    const auto tries = who_tries_whom(hosts, first);
    REQUIRE(int(tries.size()) == hosts);
    for (int who = 0; who < hosts; ++who) {
      const std::set<int> others(tries[size_t(who)].begin(), tries[size_t(who)].end());
      CHECK(others.size() == tries[size_t(who)].size());
      CHECK((who == first ? int(others.size()) == hosts - 1 : others.size() <= 21));
      CHECK_FALSE(others.contains(who));
      CHECK((who == first || others.contains(first)));
      CHECK(others.contains((who + 1) % hosts));
      for (const int whom : others)  // a neighbour of one's is one's own
        CHECK(std::ranges::binary_search(tries[size_t(whom)], who));
      for (int bit = 1; bit < hosts; bit *= 2)
        if ((who ^ bit) < hosts) CHECK(others.contains(who ^ bit));
    }
  }
}

TEST_CASE("network choice: who is left has not been tried, and is each of the others") {
  for (const int hosts : {2, 16, 17, 32, 100}) {
    const auto tries = who_tries_whom(hosts, 3 % hosts), left = who_is_left(hosts, 3 % hosts);
    for (int who = 0; who < hosts; ++who) {
      std::set<int> others(tries[size_t(who)].begin(), tries[size_t(who)].end());
      others.insert(left[size_t(who)].begin(), left[size_t(who)].end());
      CHECK(others.size() == tries[size_t(who)].size() + left[size_t(who)].size());
      CHECK((int(others.size()) == hosts - 1 && !others.contains(who)));
    }
  }
  CHECK(who_is_left(17, 0)[1] == std::vector{8, 11, 7, 12, 6, 13, 4, 15});
}

TEST_CASE("network choice: all have to reach it, then the fastest link counts") {
  CHECK(chosen({good("eth0", 1000, 50, true), good("ib0", 100000, 50)}) == "ib0");
  CHECK(chosen({good("eth0", 1000, 50, true), bad("ib0", 100000)}) == "eth0");
  CHECK(chosen({bad("eth0", 1000, true), bad("ib0", 100000)}) == "none");
  CHECK(chosen({good("eth0", 1000, 50, true), good("eth1", 0, 50)}) == "eth0");
  CHECK(chosen({good("eth0", 0, 50, true), good("tun0", kTunnelMbps, 50)}) == "eth0");
  CHECK(chosen({good("tun0", kTunnelMbps, 50, true), good("eth0", 1000, 50)}) == "eth0");
  CHECK(chosen({good("tun0", kTunnelMbps, 50, true), good("eth0", 0, 50)}) == "eth0");
  CHECK(chosen({}) == "none");
}

TEST_CASE(
    "network choice: where ssh's speed is not known, it takes more than a speed to be faster") {
  CHECK(chosen({good("eth0", 0, 50, true), good("ib0", 100000, 50)}) == "ib0");
  CHECK(chosen({good("eth0", 0, 50, true), open("ib0", 100000)}) == "eth0?");
  CHECK(chosen({good("eth0", 0, 50, true), good("eth1", 10001, 50)}) == "eth1");
  CHECK(chosen({good("eth0", 0, 50, true), good("eth1", 1000, 50)}) == "eth0");
  CHECK(chosen({good("eth0", 0, 50, true), good("br-1", 10000, 50)}) == "eth0");
  CHECK(chosen({good("eth0", 0, 50, true), good("br-1", 10000, 50), good("br-2", 1000, 9)}) ==
        "eth0");
  CHECK(chosen({good("eth0", 0, 50, true), open("br-1", 10000)}) == "eth0");
  CHECK(chosen({open("eth0", 0, true), good("br-1", 10000, 50)}) == "br-1?");
  CHECK(chosen({good("eth0", 0, 9000, true), good("br-1", 10000, 50)}) == "br-1");  // far longer
  CHECK(chosen({bad("eth0", 0, true), good("eth1", 0, 50), good("eth2", 1000, 50)}) == "eth2");
  CHECK(chosen({good("eth0", 0, 50), good("eth1", 1000, 50)}) == "eth1");  // ssh is at neither
}

TEST_CASE("network choice: among equal links ssh's counts, but for one that is far longer") {
  CHECK(chosen({good("eth0", 1000, 50), good("eth1", 1000, 40)}) == "eth0");
  CHECK(chosen({good("eth0", 1000, 1900, true), good("eth1", 1000, 40)}) == "eth0");
  CHECK(chosen({good("eth0", 1000, 2200, true), good("eth1", 1000, 40)}) == "eth1");
  CHECK(chosen({good("eth0", 1000, 9000, true), good("eth1", 1000, 5000)}) == "eth0");
  CHECK(chosen({good("eth0", 1000, 90000, true), good("eth1", 100, 40)}) == "eth0");
  CHECK(chosen({good("eth0", 1000, 9000), good("eth1", 1000, 9000), good("eth2", 1000, 40)}) ==
        "eth2");
}

TEST_CASE("network choice: what could be better is waited for, and nothing else") {
  CHECK(chosen({good("eth0", 1000, 50, true), open("ib0", 100000)}) == "eth0?");
  CHECK(chosen({good("eth0", 1000, 50, true), open("ib0", 100000)}, false) == "eth0");
  CHECK(chosen({good("eth0", 1000, 50, true), open("docker0", 1000)}) == "eth0");
  CHECK(chosen({good("eth0", 1000, 50, true), open("tun0", 0)}) == "eth0");
  CHECK(chosen({open("eth0", 1000, true), good("eth1", 1000, 50)}) == "eth1?");
  CHECK(chosen({open("eth0", 1000, true), good("eth1", 1000, 50)}, false) == "eth1");
  // Beside a near one this would be far.
  CHECK(chosen({good("eth0", 1000, 3000, true), open("eth1", 1000)}) == "eth0?");
  CHECK(chosen({open("eth0", 1000, true), bad("ib0", 100000)}) == "none?");
  CHECK(chosen({open("eth0", 1000, true), bad("ib0", 100000)}, false) == "none");
}

TEST_CASE("network choice: says why") {
  const Offer eth = good("eth0", 1000, 2200, true), ib = good("ib0", 100000, 40),
              eth1 = good("eth1", 1000, 40);
  CHECK(why_chosen(std::vector{eth, ib}, 1, true) == "by --network-interface");
  CHECK(why_chosen(std::vector{eth, ib}, 0, false) == "where ssh reaches it");
  CHECK(why_chosen(std::vector{eth, ib}, 0, false, true) == "where ssh leaves it");
  CHECK(why_chosen(std::vector{ib, eth1}, 1, false) == "where all hosts reach it");
  CHECK(why_chosen(std::vector{eth, ib}, 1, false) ==
        "on a faster link (100 Gbit/s) than at eth0's (eth0), where ssh reaches it (1 Gbit/s)");
  CHECK(why_chosen(std::vector{good("tun0", kTunnelMbps, 40, true), good("eth0", 100, 40)}, 1,
                   false) ==
        "on a faster link (100 Mbit/s) than at tun0's (tun0), where ssh reaches it (a tunnel)");
  CHECK(
      why_chosen(std::vector{good("tun0", kTunnelMbps, 40, true), good("eth0", 0, 40)}, 1, false) ==
      "on a faster link (unknown) than at tun0's (tun0), where ssh reaches it (a tunnel)");
  CHECK(why_chosen(std::vector{good("eth0", 0, 40, true), ib}, 1, false) ==
        "on a faster link (100 Gbit/s) than at eth0's (eth0), where ssh reaches it (unknown, taken "
        "for 10 Gbit/s)");
  CHECK(why_chosen(std::vector{good("eth0", 0, 9000, true), good("eth1", 10000, 40)}, 1, false) ==
        "nearer (0.0 ms) than at eth0's (eth0), where ssh reaches it (9.0 ms)");
  CHECK(why_chosen(std::vector{bad("eth0", 0, true), eth1}, 1, false)
            .starts_with("since not all hosts reach it at eth0's (eth0)"));
  CHECK(why_chosen(std::vector{eth, eth1}, 1, false) ==
        "nearer (0.0 ms) than at eth0's (eth0), where ssh reaches it (2.2 ms)");
  CHECK(why_chosen(std::vector{bad("eth0", 1000, true), eth1}, 1, false) ==
        "since not all hosts reach it at eth0's (eth0), where ssh reaches it: not from h3: "
        "Connection refused");
  CHECK(why_chosen(std::vector{open("eth0", 1000, true), eth1}, 1, false) ==
        "since not all hosts have reached it yet at eth0's (eth0), where ssh reaches it");
  CHECK(none_reached("h2", std::vector{bad("eth0", 1000, true), open("ib0", 1000)}) ==
        "no address of h2 is reached by all other hosts: eth0's (eth0) not from h3: Connection "
        "refused; ib0's (ib0) was not answered in time; open a way between them, or name another "
        "network (--network-interface)");
  CHECK(none_reached("h2", {}) == "h2 has no address that other hosts could reach");
}

}  // namespace hvd
