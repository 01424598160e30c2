// Link services of several hosts on one loop, on loopback, and strangers that call them.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/agent/link_service.h"
#include "tests/support/catch.h"

namespace hvd {

using std::chrono::milliseconds;
using std::chrono::seconds;

// What a request came to.
struct Outcome {
  UniqueFd link;
  std::string why;
  bool there = false;
  Clock::duration carried{};
};

// Services of hosts on one loop; which ranks are where is the test's business.
class Hosts {
 public:
  LinkService& add(const std::string& address, const std::string& secret = "a secret",
                   const Admission::Limits& limits = {}, const std::string& second = "") {
    std::vector<std::string> all = {address};
    if (!second.empty()) all.push_back(second);
    std::vector<Listener> listeners = listen_on(all);
    addresses_.push_back(listeners.front().address);
    second_ = listeners.back().address;
    services_.push_back(std::make_unique<LinkService>(
        loop_, int(services_.size()), std::move(listeners), Secret(secret), limits));
    return *services_.back();
  }
  SocketAddress address_of(size_t host) const { return addresses_.at(host); }
  SocketAddress second() const { return second_; }  // of the host that was added last
  LinkService& service(size_t host) { return *services_.at(host); }

  // Asks for a link between ranks of two hosts, at one of them.
  Outcome& request(size_t from, size_t to, uint32_t id, int local, int remote,
                   Clock::duration patience = seconds(30)) {
    outcomes_.push_back(std::make_unique<Outcome>());
    Outcome& outcome = *outcomes_.back();
    services_[from]->request(
        {id, local, remote, "h" + std::to_string(to), address_of(to), Deadline::in(patience)},
        [&outcome](UniqueFd link, const std::string& why) {
          outcome = {std::move(link), why, true};
        });
    return outcome;
  }

  // Asks whether host `to` is at this address.
  Outcome& prove(size_t from, size_t to, uint32_t offer, const SocketAddress& at,
                 Clock::duration patience = seconds(30), bool carries = false) {
    outcomes_.push_back(std::make_unique<Outcome>());
    Outcome& outcome = *outcomes_.back();
    services_[from]->prove(
        {int(to), offer, carries, at, Deadline::in(patience)},
        [&outcome](UniqueFd there, const std::string& why, Clock::duration carried) {
          REQUIRE_FALSE(outcome.there);
          outcome = {std::move(there), why, true, carried};
        });
    return outcome;
  }

  template <typename Done>
  void run_until(Done done) {
    const Deadline limit = Deadline::in(seconds(60));
    while (!done()) {
      REQUIRE_FALSE(limit.passed());
      turn(limit.when());
    }
  }
  void turn(TimePoint until) {
    for (const auto& service : services_)
      if (const auto next = service->next_deadline()) until = std::min(until, *next);
    loop_.turn(until);
    for (const auto& service : services_) service->tick(Clock::now());
  }

 private:
  Loop loop_;
  std::vector<SocketAddress> addresses_;
  SocketAddress second_;
  std::vector<std::unique_ptr<LinkService>> services_;
  std::vector<std::unique_ptr<Outcome>> outcomes_;
};

// Rank 0 on host 0, rank 1 on host 1.
struct Two : Hosts {
  explicit Two(const std::string& second_secret = "a secret") {
    add("127.0.0.1").start_epoch(1, {0});
    add("127.0.0.1", second_secret).start_epoch(1, {1});
  }
};

inline bool connected(const Outcome& one, const Outcome& other) {
  const std::string words = "hello";
  char got[16] = "";
  if (send(one.link.get(), words.data(), words.size(), MSG_NOSIGNAL) != ssize_t(words.size()))
    return false;
  const timeval patience{10, 0};
  setsockopt(other.link.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  fcntl(other.link.get(), F_SETFL, fcntl(other.link.get(), F_GETFL) & ~O_NONBLOCK);
  return recv(other.link.get(), got, sizeof got, 0) == ssize_t(words.size()) && got == words;
}

// Ranks 0 and 1, of hosts 0 and 1, ask for a link and have it.
inline bool get_linked(Hosts& hosts) {
  const Outcome& caller = hosts.request(0, 1, 7, 0, 1);
  const Outcome& answerer = hosts.request(1, 0, 7, 1, 0);
  hosts.run_until([&] { return caller.there && answerer.there; });
  return connected(caller, answerer);
}

inline int option(const UniqueFd& socket, int level, int name) {
  int value = -1;
  socklen_t bytes = sizeof value;
  getsockopt(socket.get(), level, name, &value, &bytes);
  return value;
}

inline UniqueFd stranger_at(const SocketAddress& address) {
  UniqueFd fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  REQUIRE((connect(fd.get(), address.get(), address.size()) == 0 || errno == EINPROGRESS));
  return fd;
}

inline bool stranger_is_let_in(const SocketAddress& address) {
  const UniqueFd fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  return connect(fd.get(), address.get(), address.size()) == 0;
}

inline bool is_closed(const UniqueFd& fd) {
  char byte;
  const ssize_t n = recv(fd.get(), &byte, 1, MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN);
}

}  // namespace hvd
