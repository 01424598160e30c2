#include "runtime/base/cut_link.h"

#include <arpa/inet.h>
#include <linux/tcp.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "tests/support/catch.h"
#include "tests/support/left_out.h"
#include "tests/support/until.h"

using namespace hvd;

namespace {

tcp_info silent_for(uint32_t ms) {
  tcp_info facts{};
  facts.tcpi_last_ack_recv = facts.tcpi_last_data_recv = ms;
  return facts;
}

tcp_info facts_of(const UniqueFd& socket) {
  tcp_info facts{};
  socklen_t bytes = sizeof facts;
  getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &facts, &bytes);
  return facts;
}

bool has_failed(const UniqueFd& socket, int within_ms = 0) {
  pollfd failed{socket.get(), 0, 0};
  return poll(&failed, 1, within_ms) != 0;
}

// A link over the loopback device of a network that has nothing else, and can be cut. Needs root.
struct LinkToCut {
  LinkToCut() {
    std::thread([this] {
      if (unshare(CLONE_NEWNET) == 0) connect_here();
    }).join();
  }

  void connect_here() {
    network.reset(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    heal();
    sockaddr_in address{};
    socklen_t bytes = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sender.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (bind(listener.get(), any, bytes) == 0 && listen(listener.get(), 1) == 0 &&
        getsockname(listener.get(), any, &bytes) == 0 && connect(sender.get(), any, bytes) == 0)
      reader.reset(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }

  void cut() const { set_flags(0); }
  void heal() const { set_flags(IFF_UP); }
  void set_flags(int flags) const {
    ifreq device{};
    std::string("lo").copy(device.ifr_name, IFNAMSIZ);
    device.ifr_flags = static_cast<short>(flags);
    ioctl(network.get(), SIOCSIFFLAGS, &device);
  }

  UniqueFd network, sender, reader;
};

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

TEST_CASE("cut link: data say little where the kernel drops them without a word") {
  tcp_info facts = silent_for(120'000);
  facts.tcpi_retransmits = 9;
  CHECK(is_cut(facts, false));
  facts.tcpi_last_ack_recv = 119'999;
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

// The reader's kernel has no room for all that it had offered: it drops what it gets, and says so.
TEST_CASE("cut link: a window that shut upon data under way outlives a cut of 4 s") {
  utsname system{};
  if (uname(&system) != 0 || !answers_when_full(system.release))
    return note_left_out("cut link: a shut window", "its kernel is older than Linux 6.6");
  if (geteuid() != 0)
    return note_left_out("cut link: a shut window", "a network of its own needs root");
  const LinkToCut link;
  REQUIRE(link.reader);
  ask_when_idle(link.sender.get());
  std::vector<char> unread(20'000), dropped(40'000);
  REQUIRE(send(link.sender.get(), unread.data(), unread.size(), 0) == ssize_t(unread.size()));
  REQUIRE(recv(link.reader.get(), unread.data(), unread.size(), MSG_PEEK | MSG_WAITALL) ==
          ssize_t(unread.size()));
  int room = 1;
  setsockopt(link.reader.get(), SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
  REQUIRE(send(link.sender.get(), dropped.data(), dropped.size(), MSG_DONTWAIT) > 0);
  until("the window is shut", [&] {
    const tcp_info facts = facts_of(link.sender);
    return facts.tcpi_snd_wnd == 0 && facts.tcpi_unacked > 0;
  });

  link.cut();
  CHECK_FALSE(has_failed(link.sender, 4000));
  CHECK(facts_of(link.sender).tcpi_last_ack_recv >= 3900);
  link.heal();
  until("a repeat is answered",
        [&] { return has_failed(link.sender) || facts_of(link.sender).tcpi_last_ack_recv < 2000; });
  CHECK_FALSE(has_failed(link.sender));
  CHECK_FALSE(is_cut(link.sender.get()));
}

TEST_CASE("cut link: what is no TCP socket is never cut") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const UniqueFd here(ends[0]), there(ends[1]);
  ask_when_idle(here.get());
  CHECK_FALSE(is_cut(here.get()));
}
