// A port that is held for others to listen on.
#include "cli/agent/held_port.h"

#include "runtime/base/error.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

PortRange only(int port) { return {uint16_t(port), uint16_t(port)}; }

}  // namespace

TEST_CASE("held_port: whoever asks for it may listen on it, but nobody else gets it") {
  const HeldPort held = hold_port();
  REQUIRE(held.port > 0);
  CHECK(hold_port(only(held.port)).port == 0);
  for (const char* address : {"127.0.0.1", "127.0.0.1"}) {  // one after the other
    const std::vector<std::string> here = {address};
    CHECK(listen_on(here, only(held.port)).front().address.port() == held.port);
  }
}

TEST_CASE("held_port: who may choose does not choose one that is held, nor ever its own") {
  const std::vector<std::string> here = {"127.0.0.1"};
  for (int attempt = 0; attempt < 100; ++attempt) {
    const HeldPort held = hold_port();
    REQUIRE(held.port > 0);
    CHECK_THROWS_AS(listen_on(here, only(held.port), uint16_t(held.port)), Error);
    try {
      listen_on(here, only(held.port + 1));
    } catch (const Error&) {  // the next one is not free
      continue;
    }
    const PortRange both{uint16_t(held.port), uint16_t(held.port + 1)};
    CHECK(listen_on(here, both).front().address.port() == held.port + 1);
    return;
  }
  FAIL("no two ports side by side in a hundred attempts");
}

TEST_CASE("held_port: of a range the last that is free") {
  const HeldPort one = hold_port();
  REQUIRE(one.port > 3);
  const PortRange range{uint16_t(one.port - 3), uint16_t(one.port)};
  const HeldPort other = hold_port(range);
  CHECK(other.port < one.port);
  CHECK(other.port >= range.low);
}

}  // namespace hvd
