// An IPv4 or IPv6 address with a port, and how it is written: 10.0.0.1:4000, [fd00::1]:4000.
//
// Addresses only, never names: hvdrun asks no name server.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace hvd {

class SocketAddress {
 public:
  SocketAddress() = default;
  // Throws kInvalidArgument, quoting the text. A link-local address may end in %INTERFACE.
  static SocketAddress parse(std::string_view text);  // with a port
  static SocketAddress of(std::string_view host, uint16_t port);
  static SocketAddress local_of(int socket);  // throws std::system_error
  // Whom a socket is connected to; empty when it is not, or by no network. Who is reached over IPv4
  // has an IPv4 address, whatever the socket (::ffff:10.0.0.1 is 10.0.0.1).
  static SocketAddress peer_of(int socket);

  bool empty() const { return bytes_ == 0; }
  int family() const { return storage_.ss_family; }
  std::string host() const;  // without brackets
  uint16_t port() const;
  void set_port(uint16_t port);
  std::string text() const;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage_); }
  socklen_t size() const { return bytes_; }

  friend bool operator==(const SocketAddress& one, const SocketAddress& other) {
    return one.text() == other.text();
  }

 private:
  sockaddr_storage storage_{};
  socklen_t bytes_ = 0;
};

}  // namespace hvd
