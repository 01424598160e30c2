#include "collectives/tcp/link.h"

#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>  // netinet/tcp.h knows no shortest round trip
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <string>
#include <system_error>

#include "runtime/base/cut_link.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"

namespace hvd {
namespace {

constexpr size_t kReadAhead = 24 * 1024;  // short messages whole, to be summed where they lie
constexpr uint32_t kNearUs = 100;  // of a round trip, in which chunks of two ranks are 10 GB/s
constexpr size_t kDirect = 4096;   // from here on it is worth a call of its own, without a copy

// Where one end of it is, as bytes; empty where that has no address.
template <class Name>
std::string address_of(int fd, const Name& name) {
  sockaddr_storage at{};
  socklen_t bytes = sizeof at;
  if (name(fd, reinterpret_cast<sockaddr*>(&at), &bytes) != 0) return "";
  const auto text = [](const auto& address) {
    return std::string(reinterpret_cast<const char*>(&address), sizeof address);
  };
  if (at.ss_family == AF_INET) return text(reinterpret_cast<const sockaddr_in&>(at).sin_addr);
  if (at.ss_family == AF_INET6) return text(reinterpret_cast<const sockaddr_in6&>(at).sin6_addr);
  return "";
}

// From an address to itself.
bool is_loopback(int fd) {
  const std::string own = address_of(fd, getsockname);
  return !own.empty() && own == address_of(fd, getpeername);
}

// By the shortest round trip so far: the handshake at least has been one.
bool is_near(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 && info.tcpi_min_rtt < kNearUs;
}

bool may_be_tried_again(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

void prepare_link(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // without it is only slower
}

Link::Link(int rank, UniqueFd socket)
    : rank_(rank), socket_(std::move(socket)), buffer_(kReadAhead) {
  prepare_link(fd());
  far_ = !is_loopback(fd()) && !is_near(fd());
}

void Link::post(const FrameHeader& header) {
  HVD_CHECK(header_sent(), "a message is sent whole before the next one");
  fault_point("link_post");
  out_ = header;
  header_sent_ = 0;
}

bool Link::send(const std::byte* data, size_t end, size_t* at) {
  const size_t head = sizeof out_ - header_sent_, rest = of_one_call(end - *at);
  if (head + rest == 0 || lost()) return false;
  iovec parts[2] = {{reinterpret_cast<std::byte*>(&out_) + header_sent_, head},
                    {const_cast<std::byte*>(data) + *at, rest}};
  msghdr message{};
  message.msg_iov = head != 0 ? parts : parts + 1;
  message.msg_iovlen = head != 0 && rest != 0 ? 2 : 1;
  const ssize_t sent = sendmsg(fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0) {
    waits_out_ = may_be_tried_again(errno);
    deaf_ = !waits_out_;
    if (deaf_) lose_unless_told(errno);
    return false;
  }
  const auto bytes = static_cast<size_t>(sent), of_head = std::min(head, bytes);
  header_sent_ += of_head;
  *at += bytes - of_head;
  waits_out_ = bytes < head + rest;
  return bytes != 0;
}

const FrameHeader* Link::header() {
  if (has_header_) return &in_;
  if (buffered() < sizeof in_ && !lost()) fill();
  if (buffered() < sizeof in_) return nullptr;
  memcpy(&in_, buffer_.data() + taken_, sizeof in_);
  taken_ += sizeof in_;
  has_header_ = true;
  fault_point("link_header");
  return &in_;
}

void Link::take_header() { has_header_ = false; }

bool Link::receive(std::byte* into, size_t end, size_t* at) {
  const size_t wanted = end - *at;
  if (wanted == 0) return false;
  if (buffered() == 0) {
    if (lost()) return false;
    if (wanted >= kDirect) {
      const size_t came = receive_once(into + *at, wanted);
      *at += came;
      return came != 0;
    }
    if (!fill()) return false;
  }
  const size_t part = std::min(wanted, buffered());
  memcpy(into + *at, buffer_.data() + taken_, part);
  taken_ += part;
  *at += part;
  return true;
}

bool Link::fill() {
  if (taken_ == filled_) taken_ = filled_ = 0;
  if (taken_ != 0) {  // the begin of a header: make room behind it
    memmove(buffer_.data(), buffer_.data() + taken_, buffered());
    filled_ -= taken_;
    taken_ = 0;
  }
  const size_t came = receive_once(buffer_.data() + filled_, buffer_.size() - filled_);
  filled_ += came;
  return came != 0;
}

size_t Link::receive_once(std::byte* into, size_t bytes) {
  const ssize_t came = recv(fd(), into, bytes, MSG_DONTWAIT);
  waits_in_ = came < 0 && may_be_tried_again(errno);
  if (came > 0) return static_cast<size_t>(came);
  if (came == 0)
    lose(0);
  else if (!waits_in_)
    lose(errno);
  return 0;
}

bool Link::has_word_of(uint64_t sequence) const {
  FrameHeader next;
  if (has_header_)
    next = in_;
  else if (buffered() >= sizeof next)
    memcpy(&next, buffer_.data() + taken_, sizeof next);
  else if (buffered() != 0 || recv(fd(), &next, sizeof next, MSG_DONTWAIT | MSG_PEEK) !=
                                  static_cast<ssize_t>(sizeof next))
    return false;
  return next.magic == FrameHeader::kMagic && next.sequence == sequence &&
         (next.flags & kGoodbye) == 0;
}

void Link::look_for_cut() {
  if (!lost() && is_cut(fd())) lose(ETIMEDOUT);
}

short Link::awaited_events() const {
  if (lost()) return 0;
  return static_cast<short>((waits_in_ ? POLLIN : 0) | (waits_out_ ? POLLOUT : 0));
}

// Nothing can be sent any more. What the other side has said before, a goodbye perhaps, is read
// first; then its end is.
void Link::lose_unless_told(int error) {
  if (has_header_ || buffered() != 0 || fill() || lost()) return;
  lose(error);
}

bool Link::has_ended() const {
  if (lost() || deaf_) return true;
  pollfd other_side{fd(), POLLRDHUP, 0};
  return waits_out_ && poll(&other_side, 1, 0) == 1;
}

uint64_t Link::unread() const {
  int bytes = 0;
  return ioctl(fd(), SIOCOUTQ, &bytes) == 0 ? static_cast<uint64_t>(bytes) : 0;
}

void Link::finish_sending() { shutdown(fd(), SHUT_WR); }

void Link::end() { shutdown(fd(), SHUT_RDWR); }

void Link::lose(int error) {
  waits_in_ = waits_out_ = false;
  why_ = error == 0 ? "closed by the other side" : std::generic_category().message(error);
}

}  // namespace hvd
