// How much the kernel holds for a link, by what the network between its ends is like.
#include "collectives/tcp/link.h"

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "tests/support/catch.h"
#include "tests/support/in_process_world.h"
#include "tests/support/left_out.h"

using namespace hvd;

namespace {

// Were the sizes set, so that the kernel adapts them no more? Nothing, where it cannot tell.
std::optional<bool> is_set([[maybe_unused]] const UniqueFd& socket) {
#ifdef SO_BUF_LOCK  // Linux 5.15
  int locked = 0;
  socklen_t bytes = sizeof locked;
  if (getsockopt(socket.get(), SOL_SOCKET, SO_BUF_LOCK, &locked, &bytes) != 0) {
    REQUIRE(errno == ENOPROTOOPT);
    return std::nullopt;
  }
  REQUIRE((locked == 0 || locked == 3));  // for neither way, or for both
  return locked != 0;
#else
  return std::nullopt;
#endif
}

constexpr char kCannotTell[] = "only Linux 5.15 and later tell whether sizes were set";

// The thread that calls this gets a network of its own, whose loopback takes a millisecond or so
// for a packet such as those by which two ends meet. Returns why it cannot have it.
std::string enter_slow_network() {
  if (unshare(CLONE_NEWNET) != 0)
    return std::string("a network of its own is denied: ") + std::strerror(errno);
  const UniqueFd any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq loopback{};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP;
  if (ioctl(any.get(), SIOCSIFFLAGS, &loopback) != 0)
    return std::string("its loopback does not come up: ") + std::strerror(errno);
  return std::system(
             "PATH=$PATH:/usr/sbin:/sbin tc qdisc add dev lo root tbf "
             "rate 600kbit burst 100 latency 1s") == 0
             ? ""
             : "no tc, or no sch_tbf, makes its loopback slow";
}

}  // namespace

TEST_CASE("link: a near one holds half a MiB each way") {
  bool set = false;
  for (int tries = 0; tries < 100 && !set; ++tries) {  // another process may come between
    const auto [one, other] = connected_pair();
    prepare_link(one.get());
    const auto is = is_set(one);
    if (!is) return note_left_out("link_test: a near link", kCannotTell);
    set = *is;
  }
  CHECK(set);
}

TEST_CASE("link: a far one has the sizes to which the kernel makes it grow") {
  std::string unable;
  std::pair<UniqueFd, UniqueFd> ends;
  std::thread([&] {
    unable = enter_slow_network();
    if (unable.empty()) ends = connected_pair();
  }).join();
  if (!unable.empty()) return note_left_out("link_test: a far link", unable);
  for (const UniqueFd* end : {&ends.first, &ends.second}) {
    prepare_link(end->get());
    const auto is = is_set(*end);
    if (!is) return note_left_out("link_test: a far link", kCannotTell);
    CHECK_FALSE(*is);
  }
}
