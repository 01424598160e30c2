#include "tests/collectives/nccl/standin/nccl_hub.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "tests/collectives/nccl/standin/nccl_rounds.h"
#include "tests/collectives/nccl/standin/nccl_wire.h"
#include "tests/collectives/nccl/standin/state.h"

namespace hvd {
namespace {

// A rank's connection, as the hub has it; nothing here waits for one rank.
struct Peer {
  int fd = -1;
  uint64_t group = 0;
  int rank = -1, channel = -1;
  std::vector<std::byte> received;
  std::deque<std::byte> to_send;
  bool gone = false;
};

class Hub {
 public:
  explicit Hub(int listener) : listener_(listener) { await_from(listener); }

  void run() {
    for (;;) {
      std::vector<pollfd> polled = {{listener_, POLLIN, 0}};
      for (const auto& peer : peers_)
        polled.push_back(
            {peer->fd, static_cast<short>(peer->to_send.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      stand_still();
      const int polled_well = ::poll(polled.data(), polled.size(), -1);
      move_on(1);
      if (polled_well < 0) continue;
      const std::vector<std::shared_ptr<Peer>> before = peers_;
      for (size_t k = 0; k < before.size(); ++k) {
        if (polled[k + 1].revents & (POLLIN | POLLHUP | POLLERR)) read(before[k]);
        if ((polled[k + 1].revents & POLLOUT) && !before[k]->gone) write(*before[k]);
      }
      if (polled[0].revents != 0) accept();
      std::erase_if(peers_, [](const auto& peer) { return peer->gone; });
    }
  }

 private:
  void accept() {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    peers_.push_back(std::make_shared<Peer>());
    peers_.back()->fd = fd;
    await_from(fd);
  }

  void read(const std::shared_ptr<Peer>& peer) {
    std::array<std::byte, 1 << 16> piece;
    for (;;) {
      const ssize_t got = ::recv(peer->fd, piece.data(), piece.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) break;
      if (got <= 0) {
        take_frames(peer);
        return lose(*peer);
      }
      peer->received.insert(peer->received.end(), piece.begin(), piece.begin() + got);
    }
    take_frames(peer);
  }

  void take_frames(const std::shared_ptr<Peer>& peer) {
    size_t taken = 0;
    std::vector<std::byte>& bytes = peer->received;
    for (;;) {
      Frame frame;
      if (bytes.size() - taken < sizeof frame.header) break;
      std::memcpy(&frame.header, bytes.data() + taken, sizeof frame.header);
      if (bytes.size() - taken < sizeof frame.header + frame.header.bytes) break;
      const auto body = bytes.begin() + static_cast<std::ptrdiff_t>(taken + sizeof frame.header);
      frame.body.assign(body, body + static_cast<std::ptrdiff_t>(frame.header.bytes));
      taken += sizeof frame.header + frame.header.bytes;
      take(peer, std::move(frame));
    }
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(taken));
  }

  void take(const std::shared_ptr<Peer>& peer, Frame frame) {
    if (frame.header.kind == Message::kHello) {
      const auto [found, is_new] =
          groups_.try_emplace(frame.header.group, frame.header.ranks, frame.header.count);
      if (!found->second.agrees(frame.header)) return;  // and so waits for ever
      peer->group = frame.header.group;
      peer->rank = frame.header.rank;
      peer->channel = frame.header.channel;
      found->second.open.push_back(peer);
    }
    const auto group = groups_.find(peer->group);
    if (group == groups_.end()) return;
    for (const Answer& answer :
         group->second.rounds.take(peer->rank, peer->channel, std::move(frame)))
      send(group->second, answer);
  }

  struct Group {
    Group(int ranks_, uint64_t hash_) : ranks(ranks_), hash(hash_), rounds(ranks_) {}
    // Of a rank that is not there yet, and means the same communicator (src/bootstrap.cc,
    // bootstrapRoot(): "mismatch in rank count", "rank … has already checked in").
    bool agrees(const Header& hello) const {
      if (hello.ranks != ranks || hello.count != hash) return false;
      return std::none_of(open.begin(), open.end(), [&](const auto& peer) {
        return peer->rank == hello.rank && peer->channel == hello.channel;
      });
    }

    int ranks;
    uint64_t hash;
    Rounds rounds;
    std::vector<std::shared_ptr<Peer>> open;
  };

  static void send(const Group& group, const Answer& answer) {
    for (const auto& peer : group.open)
      if (peer->rank == answer.rank && peer->channel == answer.channel) send(*peer, answer.frame);
  }

  static void send(Peer& peer, const Frame& frame) {
    Header header = frame.header;
    header.bytes = frame.body.size();
    std::array<std::byte, sizeof header> bytes;
    std::memcpy(bytes.data(), &header, sizeof header);
    peer.to_send.insert(peer.to_send.end(), bytes.begin(), bytes.end());
    peer.to_send.insert(peer.to_send.end(), frame.body.begin(), frame.body.end());
    write(peer);
  }

  static void write(Peer& peer) {
    while (!peer.to_send.empty()) {
      std::array<std::byte, 1 << 16> piece;
      const auto bytes = static_cast<std::ptrdiff_t>(std::min(piece.size(), peer.to_send.size()));
      std::copy(peer.to_send.begin(), peer.to_send.begin() + bytes, piece.begin());
      const ssize_t sent =
          ::send(peer.fd, piece.data(), static_cast<size_t>(bytes), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent <= 0) return;
      peer.to_send.erase(peer.to_send.begin(), peer.to_send.begin() + sent);
    }
  }

  void lose(Peer& peer) {
    peer.gone = true;
    await_no_more_from(peer.fd);
    ::close(peer.fd);
    const auto found = groups_.find(peer.group);
    if (found == groups_.end()) return;
    Group& group = found->second;
    std::erase_if(group.open, [&](const auto& other) { return other.get() == &peer; });
    if (!group.rounds.finalized() && setting("peer_death_error", 0) != 0) {
      Frame death;
      death.header.kind = Message::kPeerDied;
      for (const auto& other : group.open)
        if (other->channel == kControl && other->rank != peer.rank) send(*other, death);
    }
    if (group.open.empty()) groups_.erase(found);
  }

  const int listener_;
  std::vector<std::shared_ptr<Peer>> peers_;
  std::map<uint64_t, Group> groups_;
};

std::string start() {
  std::random_device random;
  // In the file system where ranks of several network namespaces are to meet.
  const std::string folder = setting("folder");
  const std::string name = (folder.empty() ? "@hvd-standin" : folder + "/hub") + "-" +
                           std::to_string(::getpid()) + "-" + std::to_string(random());
  const int listener = listen_on(name);
  if (listener < 0) return "";
  run_in_background([listener] { Hub(listener).run(); });
  return name;
}

}  // namespace

const std::string& hub_name() {
  static const std::string& name = *new std::string(start());
  return name;
}

}  // namespace hvd
