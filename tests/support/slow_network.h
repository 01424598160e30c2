// A network of its own whose loopback takes a millisecond or so for a packet such as those by which
// two ends of a link meet.
#pragma once

#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "runtime/base/unique_fd.h"
#include "tests/support/in_process_world.h"

namespace hvd {

class SlowNetwork {
 public:
  SlowNetwork() {
    std::thread([&] {
      unable_ = enter_new();
      if (unable_.empty()) unable_ = set_slow(true) ? "" : "no tc, or no sch_tbf, makes it slow";
    }).join();
  }

  // Why it cannot be had, or nothing.
  const std::string& unable() const { return unable_; }
  std::pair<UniqueFd, UniqueFd> connect() {
    std::pair<UniqueFd, UniqueFd> ends;
    within([&] { ends = connected_pair(); });
    return ends;
  }
  // From now on it is as fast as any loopback.
  void speed_up() {
    within([&] { set_slow(false); });
  }

 private:
  // Of the thread that calls it.
  std::string enter_new() {
    if (unshare(CLONE_NEWNET) != 0)
      return std::string("a network of its own is denied: ") + std::strerror(errno);
    network_.reset(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    const UniqueFd any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq loopback{};
    std::strcpy(loopback.ifr_name, "lo");
    loopback.ifr_flags = IFF_UP;
    if (network_ && ioctl(any.get(), SIOCSIFFLAGS, &loopback) == 0) return "";
    return std::string("its loopback does not come up: ") + std::strerror(errno);
  }

  static bool set_slow(bool slow) {
    const std::string limit = " root tbf rate 600kbit burst 100 latency 1s";
    const std::string change = slow ? "add dev lo" + limit : "del dev lo root";
    return std::system(("PATH=$PATH:/usr/sbin:/sbin tc qdisc " + change).c_str()) == 0;
  }

  template <class Work>
  void within(const Work& work) {
    bool entered = false;
    std::thread([&] {
      entered = setns(network_.get(), CLONE_NEWNET) == 0;
      if (entered) work();
    }).join();
    if (!entered) throw std::runtime_error("a network cannot be entered");
  }

  std::string unable_;
  UniqueFd network_;
};

}  // namespace hvd
