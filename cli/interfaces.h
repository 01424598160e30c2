// The addresses of this host's network interfaces, and which of them is meant: by an interface's
// name ("eth0"), by a network ("10.0.0.0/8", "fd00::/8"), or by the address itself.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

struct InterfaceAddress {
  std::string interface, address;

  friend bool operator==(const InterfaceAddress&, const InterfaceAddress&) = default;
};

// "eth0,10.0.0.0/8": names, networks and addresses. Pure. Throws kInvalidArgument, naming `source`.
std::vector<std::string> parse_networks(std::string_view source, std::string_view text);

// The first address of what is named first and is there; null where nothing is. Pure.
const InterfaceAddress* find_network(std::span<const InterfaceAddress> all,
                                     std::span<const std::string> networks);
// The name of the interface that has this address, or "". Pure.
std::string interface_of(std::span<const InterfaceAddress> all, std::string_view address);
// "--network-interface eth7: no such network here, which has eth0 10.77.0.1 and lo 127.0.0.1".
// Pure.
std::string no_such_network(std::span<const InterfaceAddress> all,
                            std::span<const std::string> networks);

// Of those that are up, in the system's order, without link-local ones, which say nothing
// elsewhere.
std::vector<InterfaceAddress> look_at_interfaces();

}  // namespace hvd
