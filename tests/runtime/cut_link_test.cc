#include "runtime/base/cut_link.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "runtime/base/unique_fd.h"
#include "tests/support/catch.h"

using namespace hvd;

namespace {

tcp_info silent_for(uint32_t ms) {
  tcp_info facts{};
  facts.tcpi_last_ack_recv = facts.tcpi_last_data_recv = ms;
  return facts;
}

}  // namespace

TEST_CASE("cut link: it takes 10 s of silence, and three questions in vain") {
  for (const auto question : {&tcp_info::tcpi_retransmits, &tcp_info::tcpi_probes}) {
    tcp_info facts = silent_for(10'000);
    facts.*question = 3;
    CHECK(is_cut(facts, true));
    facts.*question = 2;
    CHECK_FALSE(is_cut(facts, true));
    facts = silent_for(9'999);
    facts.*question = 15;
    CHECK_FALSE(is_cut(facts, true));
  }
}

TEST_CASE("cut link: whoever says anything is there, if only of its own") {
  for (const auto heard : {&tcp_info::tcpi_last_ack_recv, &tcp_info::tcpi_last_data_recv}) {
    tcp_info facts = silent_for(100'000);
    facts.tcpi_retransmits = facts.tcpi_probes = 9;
    facts.*heard = 300;
    CHECK_FALSE(is_cut(facts, true));
  }
}

// As a kernel of 6.18 tells it of a reader that reads nothing: all of its answers say that the
// window is full, and it is asked every two minutes.
TEST_CASE("cut link: nobody is cut off by a full window") {
  tcp_info facts = silent_for(89'000);
  facts.tcpi_backoff = 9;
  facts.tcpi_unacked = 2;
  CHECK_FALSE(is_cut(facts, true));
  facts.tcpi_probes = 1;
  CHECK_FALSE(is_cut(facts, true));
}

TEST_CASE("cut link: data say nothing where the kernel drops them without a word") {
  tcp_info facts = silent_for(100'000);
  facts.tcpi_retransmits = 9;
  CHECK_FALSE(is_cut(facts, false));
  facts.tcpi_probes = 3;
  CHECK(is_cut(facts, false));
  for (const auto* const old : {"6.1.0-18-amd64", "5.15.0", "6.5", "", "x", "6", "6.", ".6"}) {
    INFO(old);
    CHECK_FALSE(answers_when_full(old));
  }
  for (const auto* const young : {"6.6.0", "6.18.44-fc", "7.0", "10.1"}) {
    INFO(young);
    CHECK(answers_when_full(young));
  }
}

// TCP_RTO_MAX_MS: with shorter pauses one lost packet would end a link whose window shut upon data
// under way (cut_link.h). Linux 6.15.
TEST_CASE("cut link: TCP's own longest pause stays") {
  const auto longest_pause = [](int socket) {
    int ms = -1;
    socklen_t bytes = sizeof ms;
    getsockopt(socket, IPPROTO_TCP, 44, &ms, &bytes);
    return ms;
  };
  const UniqueFd link(socket(AF_INET, SOCK_STREAM, 0));
  REQUIRE(link);
  const int before = longest_pause(link.get());
  ask_when_idle(link.get());
  CHECK(longest_pause(link.get()) == before);
  repeat_within(link.get(), kMostOften);
  if (before > 0) CHECK(longest_pause(link.get()) == kMostOften.count());
}

TEST_CASE("cut link: what is no TCP socket is never cut") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const UniqueFd here(ends[0]), there(ends[1]);
  ask_when_idle(here.get());
  CHECK_FALSE(is_cut(here.get()));
}
