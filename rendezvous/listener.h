// Sockets that listen, on given addresses only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "rendezvous/socket_address.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

// The ports that a firewall lets through; 0 to 0: whichever is free.
struct PortRange {
  uint16_t low = 0, high = 0;
};

struct Listener {
  UniqueFd socket;  // non-blocking
  SocketAddress address;
};

// Listens on the first free port of the range on each of `hosts`, addresses without a port; `kept`
// is never taken. Throws kUnavailable, which names the range and, where that can be seen, who has
// its ports.
std::vector<Listener> listen_on(std::span<const std::string> hosts, PortRange ports = {},
                                uint16_t kept = 0);

// Of a range that is not 0 to 0: "any port of 4000-4002".
std::string range_text(PortRange ports);
// Why none of the range could be had, for the user: the error, who listens, which was `kept`, what
// to do.
std::string why_not(PortRange ports, int error, uint16_t kept = 0);

struct Accepted {
  UniqueFd socket;         // non-blocking; none: nobody waits, or:
  bool exhausted = false;  // somebody does, and this process can take nobody (EMFILE and the like)
};
Accepted accept_from(const Listener& listener);

// "process 12 (nginx)" that listens on a TCP port here, or nothing where that cannot be seen.
std::string who_listens(uint16_t port);

// Whether a TCP socket of this machine's has that address and port. Another machine may have the
// same address, as bridges of containers do, but hardly with a connection at that port.
bool is_end_here(const std::string& address, uint16_t port);

}  // namespace hvd
