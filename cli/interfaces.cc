#include "cli/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <optional>

#include "cli/quoted.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr size_t kNameBytesMax = IFNAMSIZ - 1;
constexpr size_t kShownMax = 8;  // addresses in a message

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
                      quoted(word));
    networks.emplace_back(word);
    if (comma == rest.size()) return networks;
    rest.remove_prefix(comma + 1);
  }
}

const InterfaceAddress* find_network(std::span<const InterfaceAddress> all,
                                     std::span<const std::string> networks) {
  for (const std::string& wish : networks)
    for (const InterfaceAddress& one : all)
      if (is_meant(one, wish)) return &one;
  return nullptr;
}

std::string interface_of(std::span<const InterfaceAddress> all, std::string_view address) {
  const auto same =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.address == address; });
  return same == all.end() ? "" : same->interface;
}

std::string no_such_network(std::span<const InterfaceAddress> all,
                            std::span<const std::string> networks) {
  std::string text = "--network-interface ";
  for (size_t i = 0; i < networks.size(); ++i) text += (i > 0 ? "," : "") + networks[i];
  text += ": no such network here";
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
      all.push_back(
          {entry->ifa_name, inet_ntop(entry->ifa_addr->sa_family, address, text, sizeof text)});
  }
  return all;
}

}  // namespace hvd
