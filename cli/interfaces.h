// The addresses of this host's network interfaces, and which of them is meant: by an interface's
// name ("eth0"), by a network ("10.0.0.0/8", "fd00::/8"), or by the address itself.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

// The speed of a tunnel, which is never faster than what carries it.
inline constexpr int kTunnelMbps = -1;

struct InterfaceAddress {
  std::string interface, address;
  // Of the link, in Mbit/s; 0: not known, as of many virtual machines' cards and of all bridges.
  int speed_mbps = 0;

  friend bool operator==(const InterfaceAddress&, const InterfaceAddress&) = default;
};

// "eth0,10.0.0.0/8": names, networks and addresses. Pure. Throws kInvalidArgument, naming `source`.
std::vector<std::string> parse_networks(std::string_view source, std::string_view text);

// The addresses of what is named first and is there, in their order; none where nothing is. Pure.
std::vector<InterfaceAddress> find_network(std::span<const InterfaceAddress> all,
                                           std::span<const std::string> networks);
// From another host, unlike loopback and link-local ones of IPv6. Pure.
bool may_lead_here(std::string_view address);
// "--network-interface eth7: no such network here, which has eth0 10.77.0.1 and lo 127.0.0.1"; or,
// where there is one, that it leads to no other host. Pure.
std::string no_such_network(std::span<const InterfaceAddress> all,
                            std::span<const std::string> networks);

// Of those that are up, in the system's order, without link-local ones of IPv6, which say nothing
// without an interface.
std::vector<InterfaceAddress> look_at_interfaces();

inline constexpr const char* kLoopbackInterface = "lo";
// This, on which what ranks of one host listen for is reached from there alone; empty: it is down.
std::string loopback_interface();

}  // namespace hvd
