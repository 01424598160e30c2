#include "tests/benchmark/namespace_link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>

#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace hvd {
namespace {

void check(bool good, const std::string& what) {
  if (!good) throw std::system_error(errno, std::generic_category(), what);
}

// Runs in a network namespace, in a thread of its own; sockets stay where they are made.
void within(const std::string& network, const std::function<void()>& work) {
  std::exception_ptr failure;
  std::thread([&] {
    try {
      const UniqueFd file(open(network.c_str(), O_RDONLY | O_CLOEXEC));
      check(file && setns(file.get(), CLONE_NEWNET) == 0, network);
      work();
    } catch (...) {
      failure = std::current_exception();
    }
  }).join();
  if (failure) std::rethrow_exception(failure);
}

sockaddr_in address_here() {
  ifaddrs* all = nullptr;
  check(getifaddrs(&all) == 0, "getifaddrs");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, freeifaddrs);
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next)
    if (one->ifa_addr != nullptr && one->ifa_addr->sa_family == AF_INET &&
        (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_LOOPBACK) == 0)
      return *reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
  throw std::runtime_error("a network namespace has no IPv4 address but loopback");
}

void set_nonblocking(const UniqueFd& fd) {
  check(fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) | O_NONBLOCK) == 0, "fcntl");
}

}  // namespace

std::pair<UniqueFd, UniqueFd> connected_between(const std::string& one, const std::string& other) {
  UniqueFd listener, first, second;
  sockaddr_in address{};
  socklen_t length = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  within(one, [&] {
    address = address_here();
    listener.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    check(bind(listener.get(), any, length) == 0 && listen(listener.get(), 1) == 0 &&
              getsockname(listener.get(), any, &length) == 0,
          "listen");
  });
  within(other, [&] {
    second.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    check(connect(second.get(), any, length) == 0, "connect");
  });
  first.reset(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  check(bool(first), "accept");
  set_nonblocking(first);
  set_nonblocking(second);
  return {std::move(first), std::move(second)};
}

}  // namespace hvd
