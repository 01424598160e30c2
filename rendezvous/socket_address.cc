#include "rendezvous/socket_address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>

#include "runtime/base/error.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

constexpr size_t kShownMost = 100;

[[noreturn]] void refuse(std::string_view text) {
  const std::string what = is_shown(text) ? "\"" + std::string(head_of(text, kShownMost)) + "\""
                                          : "what cannot be shown";
  throw Error(ErrorCode::kInvalidArgument,
              what + " is no address; write 10.0.0.1:4000 or [fd00::1]:4000");
}

uint32_t interface_number(const std::string& name) {
  uint32_t number = if_nametoindex(name.c_str());
  if (number == 0) std::from_chars(name.data(), name.data() + name.size(), number);
  return number;
}

}  // namespace

SocketAddress SocketAddress::of(std::string_view host, uint16_t port) {
  SocketAddress made;
  const std::string text(host);
  auto& four = reinterpret_cast<sockaddr_in&>(made.storage_);
  auto& six = reinterpret_cast<sockaddr_in6&>(made.storage_);
  const size_t percent = text.find('%');
  if (inet_pton(AF_INET, text.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    made.bytes_ = sizeof four;
  } else if (inet_pton(AF_INET6, text.substr(0, percent).c_str(), &six.sin6_addr) == 1) {
    six.sin6_family = AF_INET6;
    made.bytes_ = sizeof six;
    if (percent != text.npos) six.sin6_scope_id = interface_number(text.substr(percent + 1));
    if (percent != text.npos && six.sin6_scope_id == 0) refuse(host);
  } else {
    refuse(host);
  }
  made.set_port(port);
  return made;
}

SocketAddress SocketAddress::parse(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == text.npos) refuse(text);
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size()) refuse(text);
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (bracketed != (host.find(':') != host.npos)) refuse(text);
  return of(host, port);
}

SocketAddress SocketAddress::local_of(int socket) {
  SocketAddress made;
  made.bytes_ = sizeof made.storage_;
  if (getsockname(socket, made.get(), &made.bytes_) != 0)
    throw std::system_error(errno, std::generic_category(), "getsockname");
  return made;
}

SocketAddress SocketAddress::peer_of(int socket) {
  SocketAddress made;
  socklen_t bytes = sizeof made.storage_;
  if (getpeername(socket, made.get(), &bytes) == 0 &&
      (made.family() == AF_INET || made.family() == AF_INET6))
    made.bytes_ = bytes;
  const auto& six = reinterpret_cast<const sockaddr_in6&>(made.storage_);
  if (made.family() != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) return made;
  SocketAddress plain;
  auto& four = reinterpret_cast<sockaddr_in&>(plain.storage_);
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  std::memcpy(&four.sin_addr, &six.sin6_addr.s6_addr[12], sizeof four.sin_addr);
  plain.bytes_ = sizeof four;
  return plain;
}

std::string SocketAddress::host() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (family() == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(storage_).sin_addr, text, sizeof text);
    return text;
  }
  const auto& six = reinterpret_cast<const sockaddr_in6&>(storage_);
  inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof text);
  std::string host = text;
  char name[IF_NAMESIZE];
  if (six.sin6_scope_id == 0) return host;
  return host + '%' +
         (if_indextoname(six.sin6_scope_id, name) ? name : std::to_string(six.sin6_scope_id));
}

uint16_t SocketAddress::port() const {
  return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(storage_).sin6_port
                                    : reinterpret_cast<const sockaddr_in&>(storage_).sin_port);
}

void SocketAddress::set_port(uint16_t port) {
  (family() == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(storage_).sin6_port
                        : reinterpret_cast<sockaddr_in&>(storage_).sin_port) = htons(port);
}

std::string SocketAddress::text() const {
  if (empty()) return "an unknown address";
  const std::string port_text = ":" + std::to_string(port());
  return (family() == AF_INET6 ? "[" + host() + "]" : host()) + port_text;
}

}  // namespace hvd
