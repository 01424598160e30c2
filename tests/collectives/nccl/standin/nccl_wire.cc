#include "tests/collectives/nccl/standin/nccl_wire.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "tests/collectives/nccl/standin/state.h"

namespace hvd {
namespace {

struct Address {
  sockaddr_un address = {};
  socklen_t length = 0;
};

Address address_of(const std::string& name) {
  Address made;
  made.address.sun_family = AF_UNIX;
  std::memcpy(made.address.sun_path, name.data(), name.size());
  if (name[0] == '@') made.address.sun_path[0] = 0;
  made.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  return made;
}

int open_socket() { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }

bool send_all(int fd, const void* data, size_t bytes) {
  const auto* next = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(fd, next, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    next += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

bool receive_all(int fd, void* data, size_t bytes) {
  auto* next = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t received = ::recv(fd, next, bytes, 0);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return false;
    next += received;
    bytes -= static_cast<size_t>(received);
  }
  return true;
}

}  // namespace

const char* name_of(Message kind) {
  constexpr const char* kNames[] = {"hello",  "collective", "split",
                                    "window", "connect",    "finalize"};
  return kNames[static_cast<size_t>(kind)];
}

std::unique_ptr<Connection> Connection::open(const std::string& name) {
  auto made = std::make_unique<Connection>(open_socket());
  const Address hub = address_of(name);
  if (::connect(made->fd_, reinterpret_cast<const sockaddr*>(&hub.address), hub.length) != 0)
    return nullptr;
  return made;
}

Connection::~Connection() { ::close(fd_); }

bool Connection::send(const Frame& frame) {
  Header header = frame.header;
  header.bytes = frame.body.size();
  return send_all(fd_, &header, sizeof header) &&
         send_all(fd_, frame.body.data(), frame.body.size());
}

bool Connection::receive(Frame& frame) {
  await();
  if (!receive_all(fd_, &frame.header, sizeof frame.header)) return false;
  frame.body.resize(frame.header.bytes);
  return receive_all(fd_, frame.body.data(), frame.body.size());
}

void Connection::await() const {
  if (!is_in_background()) return;
  await_from(fd_);
  stand_still();
  char first = 0;
  while (::recv(fd_, &first, 1, MSG_PEEK) < 0 && errno == EINTR) {
  }
  move_on(1);
  await_no_more_from(fd_);
}

Message Connection::look() const {
  Header header;
  const ssize_t seen = ::recv(fd_, &header, sizeof header, MSG_PEEK | MSG_DONTWAIT);
  if (seen == 0) return Message::kPeerDied;
  return seen == static_cast<ssize_t>(sizeof header) ? header.kind : Message::kReply;
}

void Connection::close() noexcept { ::shutdown(fd_, SHUT_RDWR); }

int listen_on(const std::string& name) {
  const int fd = open_socket();
  const Address own = address_of(name);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&own.address), own.length) != 0 ||
      ::listen(fd, 4096) != 0) {
    ::close(fd);
    return -1;
  }
  return fd;
}

}  // namespace hvd
