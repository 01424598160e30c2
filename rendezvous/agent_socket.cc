#include "rendezvous/agent_socket.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>

#include "runtime/base/error.h"
#include "runtime/base/open_files.h"
#include "runtime/base/utf8.h"

namespace hvd {
namespace {

constexpr size_t kQueueMax = 4096;

struct WireHeader {
  static constexpr uint32_t kMagic = 0x68766441;  // "hvdA"
  static constexpr uint16_t kVersion = 2;

  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  uint16_t kind = 0;
  uint32_t epoch = 0;
  uint32_t id = 0;
  int64_t value = 0;
  uint32_t key_bytes = 0;
  uint32_t body_bytes = 0;
};

struct WireWorld {
  uint32_t epoch;
  int32_t rank, size, local_rank, local_size, cross_rank, cross_size;
};

constexpr size_t kPacketMax = sizeof(WireHeader) + kAgentMessageKeyMax + kAgentMessageBodyMax;

std::vector<std::byte> pack(const AgentMessage& message) {
  HVD_CHECK(message.key.size() <= kAgentMessageKeyMax, "key of an agent message");
  HVD_CHECK(message.body.size() <= kAgentMessageBodyMax, "body of an agent message");
  WireHeader header;
  header.kind = message.kind;
  header.epoch = message.epoch;
  header.id = message.id;
  header.value = message.value;
  header.key_bytes = static_cast<uint32_t>(message.key.size());
  header.body_bytes = static_cast<uint32_t>(message.body.size());
  std::vector<std::byte> bytes(sizeof header + message.key.size() + message.body.size());
  std::byte* to = bytes.data();
  std::memcpy(to, &header, sizeof header);
  to += sizeof header;
  if (!message.key.empty()) std::memcpy(to, message.key.data(), message.key.size());
  to += message.key.size();
  if (!message.body.empty()) std::memcpy(to, message.body.data(), message.body.size());
  return bytes;
}

AgentMessage unpack(std::span<const std::byte> bytes) {
  WireHeader header;
  if (bytes.size() < sizeof header) {
    throw Error(ErrorCode::kInvalidArgument, "a message of " + std::to_string(bytes.size()) +
                                                 " bytes between worker and agent is too short");
  }
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != WireHeader::kMagic || header.version != WireHeader::kVersion) {
    throw Error(ErrorCode::kInvalidArgument,
                "hvdrun and libhvd are of different versions (messages of version " +
                    std::to_string(header.version) + " and " +
                    std::to_string(WireHeader::kVersion) + "); install both from one release");
  }
  if (header.kind >= AgentMessage::kKinds || header.key_bytes > kAgentMessageKeyMax ||
      header.body_bytes > kAgentMessageBodyMax ||
      bytes.size() != sizeof header + header.key_bytes + header.body_bytes) {
    throw Error(ErrorCode::kInvalidArgument, "a message between worker and agent is malformed");
  }
  AgentMessage message;
  message.kind = static_cast<AgentMessage::Kind>(header.kind);
  message.epoch = header.epoch;
  message.id = header.id;
  message.value = header.value;
  const char* key = reinterpret_cast<const char*>(bytes.data() + sizeof header);
  message.key.assign(key, header.key_bytes);
  const std::byte* body = bytes.data() + sizeof header + header.key_bytes;
  message.body.assign(body, body + header.body_bytes);
  return message;
}

// The address of an abstract socket begins with a zero byte and is not zero-terminated.
socklen_t fill(sockaddr_un* address, const std::string& name) {
  *address = {};
  address->sun_family = AF_UNIX;
  const std::string path = "hvd-" + name;
  HVD_CHECK(path.size() + 1 <= sizeof address->sun_path, "name of the agent's socket");
  std::memcpy(address->sun_path + 1, path.data(), path.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
}

UniqueFd make_socket() {
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw std::system_error(errno, std::generic_category(), "socket");
  return fd;
}

}  // namespace

std::string AgentMessage::text() const {
  return std::string(reinterpret_cast<const char*>(body.data()), body.size());
}

Bytes to_bytes(const std::string& text) {
  const auto* from = reinterpret_cast<const std::byte*>(text.data());
  return Bytes(from, from + text.size());
}

Bytes encode(const World& world) {
  const WireWorld wire{world.epoch,      world.rank,       world.size,      world.local_rank,
                       world.local_size, world.cross_rank, world.cross_size};
  Bytes bytes(sizeof wire);
  std::memcpy(bytes.data(), &wire, sizeof wire);
  return bytes;
}

Bytes encode_ranks(std::span<const int> ranks) {
  const auto bytes = std::as_bytes(ranks);
  return {bytes.begin(), bytes.end()};
}

std::vector<int> decode_ranks(const AgentMessage& message) {
  if (message.body.empty() || message.body.size() % sizeof(int) != 0)
    throw Error(ErrorCode::kInvalidArgument, "a message that should list ranks does not");
  std::vector<int> ranks(message.body.size() / sizeof(int));
  std::memcpy(ranks.data(), message.body.data(), message.body.size());
  return ranks;
}

World decode_world(const AgentMessage& message) {
  WireWorld wire;
  if (message.body.size() < sizeof wire)
    throw Error(ErrorCode::kInvalidArgument, "a world from the agent is malformed");
  std::memcpy(&wire, message.body.data(), sizeof wire);
  World world{wire.epoch,      wire.rank,       wire.size,       wire.local_rank,
              wire.local_size, wire.cross_rank, wire.cross_size, message.key};
  auto within = [](int rank, int size) { return rank >= 0 && rank < size; };
  if (world.epoch == 0 || !within(world.rank, world.size) ||
      !within(world.local_rank, world.local_size) || !within(world.cross_rank, world.cross_size))
    throw Error(ErrorCode::kInvalidArgument, "a world from the agent is malformed");
  return world;
}

void add_hosts(AgentMessage& world, const HostNames& names) {
  for (const auto& [first_rank, name] : names) {
    const Bytes line = to_bytes(std::to_string(first_rank) + " " + name + "\n");
    if (world.body.size() + line.size() > kAgentMessageBodyMax) return;
    world.body.insert(world.body.end(), line.begin(), line.end());
  }
}

HostNames decode_hosts(const AgentMessage& world) {
  const std::string text = world.text();
  HostNames names;
  for (size_t at = sizeof(WireWorld); at < text.size();) {
    const size_t end = text.find('\n', at), space = text.find(' ', at);
    int first_rank = -1;
    const auto read = std::from_chars(text.data() + at, text.data() + text.size(), first_rank);
    if (end == text.npos || space > end || read.ptr != text.data() + space || first_rank < 0)
      throw Error(ErrorCode::kInvalidArgument, "the names of hosts from the agent are malformed");
    names[first_rank] = text.substr(space + 1, end - space - 1);
    at = end + 1;
  }
  return names;
}

AgentSocket::Sent AgentSocket::send_packet(const Packet& packet) {
  const std::span<const int> fds(packet.fds);
  HVD_CHECK(fds.size() <= kAgentMessageFdsMax, "descriptors of an agent message");
  iovec data{const_cast<std::byte*>(packet.bytes.data()), packet.bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kAgentMessageFdsMax)> control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  for (;;) {
    if (sendmsg(fd_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return Sent::kYes;
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return Sent::kNoRoom;
    // ETOOMANYREFS: as many descriptors as this user may have under way are under way.
    const bool refused = errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS;
    return refused ? Sent::kKernelRefuses : Sent::kGone;
  }
}

void AgentSocket::send(const AgentMessage& message, std::span<const int> fds,
                       std::shared_ptr<const void> owner) {
  if (ended_ || !fd_) return;
  Packet packet{pack(message), {fds.begin(), fds.end()}, std::move(owner)};
  if (flush()) {
    const Sent sent = send_packet(packet);
    if (sent == Sent::kYes || sent == Sent::kGone) return;
    kernel_refused_ = sent == Sent::kKernelRefuses;
  }
  if (queue_.size() >= kQueueMax) {
    throw Error(ErrorCode::kUnavailable, "the other end of the agent's socket has left " +
                                             std::to_string(kQueueMax) + " messages unread");
  }
  if (!packet.owner && !packet.fds.empty()) duplicate_fds(packet);
  queue_.push_back(std::move(packet));
}

void AgentSocket::duplicate_fds(Packet& packet) {
  auto owned = std::make_shared<std::vector<UniqueFd>>();
  for (int& fd : packet.fds) {
    owned->emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!owned->back())
      throw Error(ErrorCode::kUnavailable,
                  std::string("no room for a descriptor; ") + kRaiseOpenFiles);
    fd = owned->back().get();
  }
  packet.owner = std::move(owned);
}

bool AgentSocket::flush() {
  while (!queue_.empty()) {
    const Sent sent = send_packet(queue_.front());
    kernel_refused_ = sent == Sent::kKernelRefuses;
    if (kernel_refused_ || sent == Sent::kNoRoom) return false;
    // What is gone says so when it is read.
    if (sent == Sent::kGone)
      queue_.clear();
    else
      queue_.pop_front();
  }
  return true;
}

std::optional<AgentMessage> AgentSocket::receive() {
  if (ended_ || !fd_) return std::nullopt;
  std::array<std::byte, kPacketMax> bytes;  // on the stack: sockets are many, readers few
  iovec data{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kAgentMessageFdsMax)> control;
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t length;
  do {
    length = recvmsg(fd_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    // ECONNRESET: the other end closed with messages unread; what it had sent may still be read.
  } while (length < 0 && (errno == EINTR || errno == ECONNRESET));
  if (length < 0 && errno == EAGAIN) return std::nullopt;
  if (length <= 0) {
    ended_ = true;
    return std::nullopt;
  }
  std::vector<UniqueFd> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = 0; at + sizeof(int) <= part->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part) + at, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  if (header.msg_flags & MSG_TRUNC)
    throw Error(ErrorCode::kInvalidArgument, "a message between worker and agent is too long");
  AgentMessage message = unpack(std::span(bytes.data(), static_cast<size_t>(length)));
  message.fds_lost = (header.msg_flags & MSG_CTRUNC) != 0;  // some of them may have come
  if (!message.fds_lost) message.fds = std::move(fds);
  return message;
}

AgentAddress AgentAddress::parse(const std::string& text) {
  const size_t colon = text.find(':');
  AgentAddress address;
  const char* end = text.data() + text.size();
  bool good = colon == 32 && text.find_first_not_of("0123456789abcdef") == colon;
  if (good) {
    address.name = text.substr(0, colon);
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, address.slot);
    good = error == std::errc() && stop == end && address.slot >= 0;
  }
  if (!good) {
    throw Error(ErrorCode::kInvalidArgument,
                "HVD_AGENT=" + std::string(head_of(text, 80)) +
                    " in the environment is not an agent's address; start the program with hvdrun");
  }
  return address;
}

std::string make_agent_name() {
  std::array<unsigned char, 16> random;
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
    throw std::system_error(errno, std::generic_category(), "getrandom");
  std::string name;
  for (unsigned char byte : random) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

UniqueFd listen_at(const std::string& name) {
  UniqueFd fd = make_socket();
  sockaddr_un address;
  const socklen_t length = fill(&address, name);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0)
    throw std::system_error(errno, std::generic_category(), "bind the agent's socket");
  if (listen(fd.get(), SOMAXCONN) != 0)
    throw std::system_error(errno, std::generic_category(), "listen on the agent's socket");
  return fd;
}

UniqueFd connect_to(const std::string& name) {
  // Blocking only for the connection itself: it waits while the agent's queue of connections is
  // full, as it may be when hundreds of ranks start at once.
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address;
  const socklen_t length = fill(&address, name);
  const timeval limit{.tv_sec = 30, .tv_usec = 0};
  if (fd) setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  int connected = -1;
  do {
    if (fd) connected = connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length);
  } while (fd && connected != 0 && errno == EINTR);
  if (connected != 0) {
    throw Error(ErrorCode::kUnavailable,
                "no agent answers at the address in HVD_AGENT (" +
                    std::generic_category().message(errno) +
                    "); hvdrun has ended, or the program runs in another network namespace");
  }
  fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
  return fd;
}

PeerIdentity identity_of(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return {};
  return {credentials.pid, credentials.uid};
}

}  // namespace hvd
