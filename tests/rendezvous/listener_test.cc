// Addresses as they are written, and sockets that listen on them and nowhere else.
#include "rendezvous/listener.h"

#include <errno.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "tests/support/catch.h"
#include "tests/support/left_out.h"

namespace hvd {
namespace {

const std::vector<std::string> kLoopback{"127.0.0.1"};
const std::string kOwnName = " (" + std::string(program_invocation_short_name) + ")";

// A port that was free a moment ago, with the next one free too.
uint16_t two_free_ports() {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::vector<Listener> one = listen_on(kLoopback);
    const uint16_t port = one[0].address.port();
    try {
      listen_on(kLoopback, {uint16_t(port + 1), uint16_t(port + 1)});
      return port;
    } catch (const Error&) {  // the next one is not
    }
  }
  FAIL("no two free ports side by side in a hundred attempts");
  return 0;
}

std::string failure(const std::vector<std::string>& hosts, PortRange ports) {
  try {
    listen_on(hosts, ports);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("socket address: is read as it is written") {
  for (const char* text : {"127.0.0.1:1", "10.0.0.1:65535", "[::1]:4000", "[fd00::1]:0"}) {
    INFO(text);
    CHECK(SocketAddress::parse(text).text() == text);
  }
  CHECK(SocketAddress::parse("[0:0::1]:7").text() == "[::1]:7");
  CHECK(SocketAddress::parse("[fe80::1%lo]:7").text() == "[fe80::1%lo]:7");
  CHECK(SocketAddress::of("::1", 9).text() == "[::1]:9");
  CHECK(SocketAddress::of("::1", 9).host() == "::1");
  for (const char* wrong :
       {"", ":", "host:1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1",
        "127.0.0.1:1x", "[127.0.0.1]:1", "::1:4000", "[::1]", "[::1:4000", "127.0.0.1%lo:1",
        "[fe80::1%no such]:1", "01.2.3.4:5", "localhost:1"}) {
    INFO(wrong);
    CHECK_THROWS_AS(SocketAddress::parse(wrong), Error);
  }
}

TEST_CASE("socket address: who is reached over IPv4 has an IPv4 address, whatever the socket") {
  const std::vector<Listener> all = listen_on(kLoopback);
  UniqueFd guest(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!guest) return note_left_out("listener_test: IPv4 through an IPv6 socket", "no IPv6 here");
  const SocketAddress mapped = SocketAddress::of("::ffff:127.0.0.1", all[0].address.port());
  REQUIRE(connect(guest.get(), mapped.get(), mapped.size()) == 0);
  const SocketAddress peer = SocketAddress::peer_of(guest.get());
  CHECK(peer.family() == AF_INET);
  CHECK(peer.text() == all[0].address.text());
}

TEST_CASE("listener: listens on the addresses it was given and on no other") {
  const std::vector<Listener> all = listen_on(std::vector<std::string>{"127.0.0.1", "127.0.0.2"});
  REQUIRE(all.size() == 2);
  CHECK(all[0].address.host() == "127.0.0.1");
  CHECK(all[1].address.host() == "127.0.0.2");
  CHECK(all[0].address.port() != 0);
  CHECK_FALSE(accept_from(all[0]).socket);
  UniqueFd guest(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress other = SocketAddress::of("127.0.0.3", all[0].address.port());
  CHECK(connect(guest.get(), other.get(), other.size()) != 0);
  REQUIRE(connect(guest.get(), all[0].address.get(), all[0].address.size()) == 0);
  CHECK(accept_from(all[0]).socket);
  CHECK(failure({"203.0.113.1"}, {}) ==
        "cannot listen on 203.0.113.1: Cannot assign requested address");
}

TEST_CASE("listener: takes the first free port of a range, and says who has them all") {
  const uint16_t port = two_free_ports();
  const PortRange both{port, uint16_t(port + 1)};
  const std::vector<Listener> first = listen_on(kLoopback, both);
  CHECK(first[0].address.port() == port);
  CHECK(failure(kLoopback, {port, port}) ==
        "cannot listen on 127.0.0.1, port " + std::to_string(port) + ": Address already in use; " +
            std::to_string(port) + " is process " + std::to_string(getpid()) + kOwnName +
            "'s; give other ports with --port-range LOW-HIGH");
  const std::vector<Listener> second = listen_on(kLoopback, both);
  CHECK(second[0].address.port() == port + 1);
  CHECK(failure(kLoopback, both)
            .find("any port of " + std::to_string(port) + "-" + std::to_string(port + 1)) !=
        std::string::npos);
}

TEST_CASE("listener: a port that is kept is not taken, and named where it was the last") {
  const uint16_t port = two_free_ports();
  const PortRange both{port, uint16_t(port + 1)};
  const auto why = [&](uint16_t kept) {
    try {
      listen_on(kLoopback, {port, port}, kept);
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  const std::string begin = "cannot listen on 127.0.0.1, port " + std::to_string(port) +
                            ": Address already in use; " + std::to_string(port) + " is ",
                    end = "; give other ports with --port-range LOW-HIGH";
  CHECK(why(port) == begin + "kept for MASTER_PORT" + end);
  const std::vector<Listener> second = listen_on(kLoopback, both, port);
  CHECK(second[0].address.port() == port + 1);
  const std::vector<Listener> first = listen_on(kLoopback, both);
  CHECK(first[0].address.port() == port);
  CHECK(why(uint16_t(port + 1)) ==
        begin + "process " + std::to_string(getpid()) + kOwnName + "'s" + end);
}

TEST_CASE("listener: a name that would move the terminal's cursor is not told") {
  const std::vector<Listener> one = listen_on(kLoopback);
  const uint16_t port = one[0].address.port();
  const std::string process = "process " + std::to_string(getpid());
  CHECK(who_listens(port) == process + kOwnName);
  char name[16] = {};
  REQUIRE(prctl(PR_GET_NAME, name) == 0);
  for (const char* hidden : {"\x1b[2J", "\u202e", "", "\xe9"}) {
    INFO(hidden);
    REQUIRE(prctl(PR_SET_NAME, hidden) == 0);
    CHECK(who_listens(port) == process);
  }
  REQUIRE(prctl(PR_SET_NAME, name) == 0);
}

TEST_CASE("listener: nobody is named who does not listen") {
  uint16_t port = 0;
  {
    const std::vector<Listener> one = listen_on(kLoopback);
    port = one[0].address.port();
    CHECK_FALSE(who_listens(port).empty());
  }
  CHECK(who_listens(port).empty());
}

TEST_CASE("listener: the end of a connection is this machine's, its number elsewhere is not") {
  const std::vector<std::string> here = {"127.0.0.1"};
  const Listener listener = std::move(listen_on(here).front());
  const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(connect(client.get(), listener.address.get(), listener.address.size()) == 0);
  const SocketAddress end = SocketAddress::local_of(client.get());
  CHECK(is_end_here(end.host(), end.port()));
  CHECK_FALSE(is_end_here("192.0.2.1", end.port()));  // of a network for documentation alone
  CHECK_FALSE(is_end_here("127.0.0.77", end.port()));
  for (const char* no_address : {"", "h1", "UNKNOWN", "10.0.0"})
    CHECK_FALSE(is_end_here(no_address, end.port()));
  CHECK_FALSE(is_end_here("127.0.0.1", 0));
}

}  // namespace hvd
