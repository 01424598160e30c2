#include "cli/agent/held_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

namespace hvd {
namespace {

template <typename Address>
HeldPort hold(int family, Address address, in_port_t Address::* port) {
  HeldPort held;
  held.socket.reset(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  socklen_t bytes = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  // Only then is it let go for others to listen on: another job may hold it just so.
  if (!held.socket || bind(held.socket.get(), generic, bytes) != 0 ||
      setsockopt(held.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      getsockname(held.socket.get(), generic, &bytes) != 0) {
    held.error = errno;
    return held;
  }
  held.port = ntohs(address.*port);
  return held;
}

}  // namespace

HeldPort hold_port(PortRange ports) {
  HeldPort held;
  for (int port = ports.high; port >= ports.low && held.port == 0; --port) {
    sockaddr_in6 both{};  // takes the number in both families
    both.sin6_family = AF_INET6;
    both.sin6_port = htons(uint16_t(port));
    held = hold(AF_INET6, both, &sockaddr_in6::sin6_port);
    if (held.port != 0) break;
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(uint16_t(port));
    held = hold(AF_INET, four, &sockaddr_in::sin_port);
  }
  return held;
}

}  // namespace hvd
