// How much the kernel holds for a link, by what the network between its ends is like.
#include "collectives/tcp/link.h"

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "tests/support/catch.h"
#include "tests/support/in_process_world.h"

using namespace hvd;

namespace {

// Were the sizes set, so that the kernel adapts them no more?
bool is_set(const UniqueFd& socket) {
  int locked = 0;
  socklen_t bytes = sizeof locked;
  REQUIRE(getsockopt(socket.get(), SOL_SOCKET, SO_BUF_LOCK, &locked, &bytes) == 0);
  REQUIRE((locked == 0 || locked == 3));  // for neither way, or for both
  return locked != 0;
}

// The thread that calls this gets a network of its own, whose loopback takes a millisecond or so
// for a packet such as those by which two ends meet.
bool enter_slow_network() {
  if (unshare(CLONE_NEWNET) != 0) return false;
  const UniqueFd any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq loopback{};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP;
  return ioctl(any.get(), SIOCSIFFLAGS, &loopback) == 0 &&
         std::system(
             "PATH=$PATH:/usr/sbin:/sbin tc qdisc add dev lo root tbf "
             "rate 600kbit burst 100 latency 1s") == 0;
}

}  // namespace

TEST_CASE("link: a near one holds half a MiB each way") {
  bool set = false;
  for (int tries = 0; tries < 100 && !set; ++tries) {  // another process may come between
    const auto [one, other] = connected_pair();
    prepare_link(one.get());
    set = is_set(one);
  }
  CHECK(set);
}

TEST_CASE("link: a far one has the sizes to which the kernel makes it grow") {
  if (geteuid() != 0) {
    WARN("left out: a network of its own needs root");
    return;
  }
  bool entered = false;
  std::pair<UniqueFd, UniqueFd> ends;
  std::thread([&] {
    entered = enter_slow_network();
    if (entered) ends = connected_pair();
  }).join();
  REQUIRE(entered);
  for (const UniqueFd* end : {&ends.first, &ends.second}) {
    prepare_link(end->get());
    CHECK_FALSE(is_set(*end));
  }
}
