#include "runtime/engine/log_links.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <system_error>

#include "runtime/base/cut_link.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/open_files.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

constexpr size_t kReadBytes = 16 * 1024;  // at once
constexpr int kLinksAtOnce = 64;
// As long as the communicators between hosts wait for the agent's word.
constexpr auto kLostGrace = 500ms;
constexpr auto kLastWordMost = 500ms;

bool may_be_tried_again(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

LogLinks::LogLinks(Peers& peers, const WorldShape& shape, uint32_t links)
    : peers_(peers), number_(links), epoll_(UniqueFd(epoll_create1(EPOLL_CLOEXEC))) {
  if (!epoll_)
    throw Error(ErrorCode::kUnavailable, std::string("no descriptor is left; ") + kRaiseOpenFiles);
  const int me = peers.world().rank;
  std::vector<int> ranks;
  for (const HostRanks& host : shape.hosts) {
    if (host.first == me || (me != 0 && host.first != 0)) continue;
    ranks.push_back(host.first);
    links_.push_back(
        {.rank = host.first, .sender = {host.first == 0, host, shape.size()}, .socket = {}});
  }
  peers_.request_links(number_, ranks);
}

bool LogLinks::take() {
  if (linked_) return true;
  std::optional<std::vector<UniqueFd>> sockets = peers_.take_links(number_);
  if (!sockets) return false;
  for (size_t i = 0; i < links_.size(); ++i) {
    links_[i].socket = PrivateFd(std::move(sockets->at(i)));
    const int on = 1;
    setsockopt(links_[i].socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    watch_socket(links_[i], EPOLL_CTL_ADD);
  }
  return linked_ = true;
}

void LogLinks::watch_socket(const Link& link, int operation) {
  epoll_event event{};
  event.events = EPOLLIN | (link.waits_out ? EPOLLOUT : 0u);
  event.data.u64 = static_cast<uint64_t>(&link - links_.data());
  const int done = epoll_ctl(epoll_.get(), operation, link.socket.get(), &event);
  HVD_CHECK(done == 0 || operation != EPOLL_CTL_ADD, "a link cannot be watched");
}

void LogLinks::post(const LogMessage& message, int but) {
  for (Link& link : links_)
    if (link.rank != but && link.open && !link.ending && !link.deaf)
      encode(message, peers_.world().epoch, link.out);
}

bool LogLinks::flush() {
  bool moved = false;
  if (linked_)
    for (Link& link : links_) moved |= link.sent < link.out.size() && write(link);
  return moved;
}

bool LogLinks::write(Link& link) {
  fault_point("log_send");
  const ssize_t sent = send(link.socket.get(), link.out.data() + link.sent,
                            link.out.size() - link.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
  // What the other side has said before is still read, and then its end.
  link.deaf = sent < 0 && !may_be_tried_again(errno);
  if (sent > 0) link.sent += static_cast<size_t>(sent);
  if (link.deaf || link.sent == link.out.size()) {
    link.out.clear();
    link.sent = 0;
  }
  if (const bool waits = link.sent < link.out.size(); waits != link.waits_out) {
    link.waits_out = waits;
    watch_socket(link, EPOLL_CTL_MOD);
  }
  return sent > 0;
}

bool LogLinks::receive(const std::function<void(int, const LogMessage&)>& take) {
  if (!linked_) return false;
  std::array<epoll_event, kLinksAtOnce> events;
  const int count = epoll_wait(epoll_.get(), events.data(), kLinksAtOnce, 0);
  bool moved = false;
  for (int i = 0; i < count; ++i) {
    Link& link = links_[events[static_cast<size_t>(i)].data.u64];
    if ((events[static_cast<size_t>(i)].events & EPOLLOUT) != 0 && link.open) moved |= write(link);
    if (link.open) moved |= read(link, take);
  }
  return moved;
}

bool LogLinks::read(Link& link, const std::function<void(int, const LogMessage&)>& take) {
  const size_t before = link.in.size();
  link.in.resize(before + kReadBytes);
  const ssize_t came = recv(link.socket.get(), link.in.data() + before, kReadBytes, MSG_DONTWAIT);
  const int error = came < 0 ? errno : 0;
  link.in.resize(before + static_cast<size_t>(std::max<ssize_t>(came, 0)));
  if (came <= 0) {
    if (!may_be_tried_again(error)) note_end(link, error);
    return false;
  }
  size_t at = 0;
  while (link.open) {
    const LogDecoded decoded =
        decode_log_message(std::span(link.in).subspan(at), peers_.world().epoch, link.sender);
    if (!decoded.fault.empty()) reject(link, decoded.fault);
    if (!decoded.message) break;
    fault_point("log_message");
    at += decoded.bytes;
    take(link.rank, *decoded.message);
  }
  link.in.erase(link.in.begin(), link.in.begin() + static_cast<ptrdiff_t>(at));
  return true;
}

bool LogLinks::has_unsent() const {
  return std::ranges::any_of(
      links_, [](const Link& link) { return link.open && link.sent < link.out.size(); });
}

void LogLinks::note_end(Link& link, int error) {
  link.open = false;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, link.socket.get(), nullptr);
  if (link.ending) return;
  link.lost = error == 0 ? "closed by the other side" : std::generic_category().message(error);
  any_lost_ = true;
}

void LogLinks::reject(Link& link, const std::string& fault) {
  link.open = false;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, link.socket.get(), nullptr);
  raise_trouble(peers_, TroubleReason::kLostLink,
                rank_text(peers_, peers_.world().rank) + " got " + fault + " on its link to " +
                    rank_text(peers_, link.rank),
                std::span(&link.rank, 1));
}

void LogLinks::look_for_cuts(TimePoint now) {
  if (!linked_ || now - looked_for_cuts_ < kLookForCuts) return;
  looked_for_cuts_ = now;
  for (Link& link : links_)
    if (link.open && is_cut(link.socket.get())) note_end(link, ETIMEDOUT);
}

void LogLinks::look(TimePoint now) {
  look_for_cuts(now);
  if (!any_lost_) return;
  for (Link& link : links_) {
    if (link.lost.empty()) continue;
    if (link.lost_since == TimePoint{}) link.lost_since = now;
    if (now - link.lost_since < kLostGrace) continue;
    raise_trouble(peers_, TroubleReason::kLostLink,
                  rank_text(peers_, peers_.world().rank) + " lost its link to " +
                      rank_text(peers_, link.rank) + " (" + link.lost +
                      "), and nobody knows of its death; look at the network between their hosts",
                  std::span(&link.rank, 1));
    return;
  }
}

void LogLinks::expect_end(int rank) {
  for (Link& link : links_)
    if (link.rank == rank) link.ending = true;
}

// From a link that is full for longer the other side hears an end without a word.
void LogLinks::finish_sending() {
  const Deadline deadline = Deadline::in(kLastWordMost);
  for (flush(); linked_ && has_unsent() && !deadline.passed(); flush()) {
    std::vector<pollfd> full;
    for (const Link& link : links_)
      if (link.open && link.waits_out) full.push_back({link.socket.get(), POLLOUT, 0});
    poll(full.data(), full.size(), deadline.poll_timeout_ms());
  }
  for (const Link& link : links_)
    if (link.socket) shutdown(link.socket.get(), SHUT_WR);
}

std::chrono::milliseconds LogLinks::watch(std::vector<pollfd>& descriptors) const {
  if (linked_) descriptors.push_back({epoll_.get(), POLLIN, 0});
  return any_lost_ ? kLostGrace : std::chrono::milliseconds::max();
}

}  // namespace hvd
