// Both ends of a control stream, and waiting for what comes.
#pragma once

#include <poll.h>

#include <string>
#include <vector>

#include "rendezvous/client.h"
#include "rendezvous/server.h"
#include "runtime/base/deadline.h"
#include "tests/support/catch.h"

namespace hvd {

inline void wait_readable(int fd, Deadline deadline) {
  pollfd one{fd, POLLIN, 0};
  REQUIRE(poll(&one, 1, deadline.poll_timeout_ms()) == 1);
}

// What the server has got once `done` says that it is enough.
template <typename Done>
RendezvousServer::Incoming at_server(RendezvousServer& server, Done done) {
  const Deadline deadline = Deadline::in(std::chrono::seconds(20));
  RendezvousServer::Incoming all;
  while (!done(all)) {
    wait_readable(server.wake_fd(), deadline);
    for (RendezvousServer::Incoming& news : server.take()) {
      all.session = news.session;
      all.host = news.host;
      for (auto& message : news.messages) all.messages.push_back(std::move(message));
      all.closed |= news.closed;
      all.why = news.why;
    }
  }
  return all;
}

template <typename Done>
RendezvousClient::Incoming at_client(RendezvousClient& client, Done done) {
  const Deadline deadline = Deadline::in(std::chrono::seconds(20));
  RendezvousClient::Incoming all;
  while (!done(all)) {
    wait_readable(client.wake_fd(), deadline);
    RendezvousClient::Incoming news = client.take();
    for (auto& message : news.messages) all.messages.push_back(std::move(message));
    all.closed |= news.closed;
    all.why = news.why;
  }
  return all;
}

inline bool has_message(const RendezvousServer::Incoming& all) { return !all.messages.empty(); }
inline bool has_order(const RendezvousClient::Incoming& all) { return !all.messages.empty(); }

// As long as one may be, but for a few bytes.
inline proto::ToAgent long_order() {
  proto::ToAgent order;
  order.mutable_refuse_epoch()->set_reason(std::string(size_t(kOrderBytesMax) - 32, 'x'));
  return order;
}

inline proto::FromAgent claimed(int rank) {
  proto::FromAgent message;
  message.mutable_claimed()->set_rank(rank);
  return message;
}

}  // namespace hvd
