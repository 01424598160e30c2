#include "cli/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>

#include "cli/quoted.h"
#include "runtime/base/error.h"
#include "runtime/base/unique_fd.h"

namespace hvd {
namespace {

constexpr size_t kNameBytesMax = IFNAMSIZ - 1;
constexpr size_t kShownMax = 8;  // addresses in a message
constexpr std::string_view kSoftware[] = {"bridge", "dummy", "tun", "veth"};  // drivers

struct Bits {
  std::array<unsigned char, 16> bytes{};
  int count = 0;  // 32 or 128
};

std::optional<Bits> read_address(std::string_view text) {
  const std::string word(text);
  Bits bits;
  if (inet_pton(AF_INET, word.c_str(), bits.bytes.data()) == 1)
    bits.count = 32;
  else if (inet_pton(AF_INET6, word.c_str(), bits.bytes.data()) == 1)
    bits.count = 128;
  else
    return std::nullopt;
  return bits;
}

struct Network {
  Bits address;
  int prefix = 0;
};

// An address is a network of one.
std::optional<Network> read_network(std::string_view text) {
  const size_t slash = std::min(text.find('/'), text.size());
  const auto address = read_address(text.substr(0, slash));
  if (!address) return std::nullopt;
  Network network{*address, address->count};
  if (slash == text.size()) return network;
  const std::string_view digits = text.substr(slash + 1);
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, network.prefix);
  if (error != std::errc() || stop != end || network.prefix < 0 || network.prefix > address->count)
    return std::nullopt;
  return network;
}

bool holds(const Network& network, const Bits& address) {
  if (network.address.count != address.count) return false;
  for (int bit = 0; bit < network.prefix; ++bit) {
    const unsigned char mask = static_cast<unsigned char>(0x80 >> (bit % 8));
    if (((network.address.bytes[size_t(bit / 8)] ^ address.bytes[size_t(bit / 8)]) & mask) != 0)
      return false;
  }
  return true;
}

bool is_meant(const InterfaceAddress& one, const std::string& wish) {
  if (one.interface == wish) return true;
  const auto network = read_network(wish);
  const auto address = read_address(one.address);
  return network && address && holds(*network, *address);
}

bool is_interface_name(std::string_view word) {
  return word.size() <= kNameBytesMax && std::all_of(word.begin(), word.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-' || c == ':' || c == '@';
         });
}

// Asked of the kernel, since /sys shows the interfaces of whichever namespace it was mounted in.
template <class Question>
bool ask_ethtool(int any_socket, const char* interface, uint32_t command, Question* question) {
  question->cmd = command;
  ifreq request{};
  std::strncpy(request.ifr_name, interface, sizeof request.ifr_name - 1);
  request.ifr_data = reinterpret_cast<char*>(question);
  return ioctl(any_socket, SIOCETHTOOL, &request) == 0;
}

// A tunnel says nothing of what carries it; nor does what is made by software, whatever number it
// gives: each bridge of containers has 10 Gbit/s.
int speed_of(int any_socket, const ifaddrs& entry) {
  if ((entry.ifa_flags & IFF_LOOPBACK) != 0) return 0;
  if ((entry.ifa_flags & IFF_POINTOPOINT) != 0) return kTunnelMbps;
  ethtool_drvinfo driver{};
  if (ask_ethtool(any_socket, entry.ifa_name, ETHTOOL_GDRVINFO, &driver) &&
      std::ranges::find(kSoftware, std::string_view(driver.driver)) != std::end(kSoftware))
    return 0;
  ethtool_cmd link{};
  if (!ask_ethtool(any_socket, entry.ifa_name, ETHTOOL_GSET, &link)) return 0;
  const uint32_t speed = ethtool_cmd_speed(&link);
  return speed > uint32_t(INT_MAX) ? 0 : int(speed);  // SPEED_UNKNOWN
}

}  // namespace

std::vector<std::string> parse_networks(std::string_view source, std::string_view text) {
  std::vector<std::string> networks;
  for (std::string_view rest = text;;) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view word = rest.substr(0, comma);
    if (word.empty() || (!is_interface_name(word) && !read_network(word)))
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(source) +
                      " takes the name of an interface, a network such as 10.0.0.0/8 or an "
                      "address, not " +
                      in_quotes(word));
    networks.emplace_back(word);
    if (comma == rest.size()) return networks;
    rest.remove_prefix(comma + 1);
  }
}

std::vector<InterfaceAddress> find_network(std::span<const InterfaceAddress> all,
                                           std::span<const std::string> networks) {
  std::vector<InterfaceAddress> found;
  for (const std::string& wish : networks) {
    std::copy_if(all.begin(), all.end(), std::back_inserter(found),
                 [&](const InterfaceAddress& one) { return is_meant(one, wish); });
    if (!found.empty()) break;
  }
  return found;
}

bool may_lead_here(std::string_view address) {
  return !address.starts_with("127.") && address != "::1" && !address.starts_with("fe80:");
}

std::string no_such_network(std::span<const InterfaceAddress> all,
                            std::span<const std::string> networks) {
  std::string text = "--network-interface ";
  for (size_t i = 0; i < networks.size(); ++i) text += (i > 0 ? "," : "") + networks[i];
  text += find_network(all, networks).empty() ? ": no such network here"
                                              : ": no other host is reached by it from here";
  for (size_t i = 0; i < all.size() && i < kShownMax; ++i)
    text += (i == 0                ? ", which has "
             : i + 1 == all.size() ? " and "
                                   : ", ") +
            all[i].interface + " " + all[i].address;
  return text + (all.size() > kShownMax ? " and more" : "");
}

std::vector<InterfaceAddress> look_at_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, freeifaddrs);
  const UniqueFd any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  std::vector<InterfaceAddress> all;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    char text[INET6_ADDRSTRLEN];
    const void* address = nullptr;
    if (entry->ifa_addr->sa_family == AF_INET)
      address = &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
    if (entry->ifa_addr->sa_family == AF_INET6) {
      const auto* six = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr);
      if (!IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)) address = &six->sin6_addr;
    }
    if (address != nullptr)
      all.push_back({entry->ifa_name,
                     inet_ntop(entry->ifa_addr->sa_family, address, text, sizeof text),
                     speed_of(any.get(), *entry)});
  }
  return all;
}

std::string loopback_interface() {
  const UniqueFd any(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq flags{};
  strcpy(flags.ifr_name, kLoopbackInterface);
  const bool is_up = any && ioctl(any.get(), SIOCGIFFLAGS, &flags) == 0 &&
                     (flags.ifr_flags & (IFF_UP | IFF_LOOPBACK)) == (IFF_UP | IFF_LOOPBACK);
  return is_up ? kLoopbackInterface : "";
}

}  // namespace hvd
