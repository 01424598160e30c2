// RendezvousServer and RendezvousClient over a socketpair: order, ends, and a peer that is gone.
#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <vector>

#include "rendezvous/client.h"
#include "rendezvous/server.h"
#include "runtime/base/deadline.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

struct Pair {
  Pair() {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    server = std::make_unique<RendezvousServer>(UniqueFd(ends[0]));
    client = std::make_unique<RendezvousClient>(UniqueFd(ends[1]));
  }
  std::unique_ptr<RendezvousServer> server;
  std::unique_ptr<RendezvousClient> client;
};

void wait_readable(int fd, Deadline deadline) {
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
      for (auto& message : news.messages) all.messages.push_back(std::move(message));
      all.closed |= news.closed;
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
  }
  return all;
}

proto::FromAgent claimed(int rank) {
  proto::FromAgent message;
  message.mutable_claimed()->set_rank(rank);
  return message;
}

}  // namespace

TEST_CASE("control stream: messages arrive in order, both ways") {
  Pair pair;
  for (int i = 0; i < 200; ++i) pair.client->send(claimed(i));
  const auto got = at_server(*pair.server, [](auto& all) { return all.messages.size() == 200; });
  for (int i = 0; i < 200; ++i) REQUIRE(got.messages[size_t(i)].claimed().rank() == i);
  for (int i = 0; i < 200; ++i) {
    proto::ToAgent order;
    order.mutable_stop()->set_after_ms(i);
    pair.server->send(got.session, order);
  }
  const auto orders = at_client(*pair.client, [](auto& all) { return all.messages.size() == 200; });
  for (int i = 0; i < 200; ++i) REQUIRE(orders.messages[size_t(i)].stop().after_ms() == i);
}

TEST_CASE("control stream: the last words arrive before the end, and the end on both sides") {
  for (int round = 0; round < 20; ++round) {
    Pair pair;
    for (int i = 0; i < 10; ++i) pair.client->send(claimed(i));
    pair.client->finish();
    const auto got = at_server(*pair.server, [](auto& all) { return all.closed; });
    REQUIRE(got.messages.size() == 10);
    at_client(*pair.client, [](auto& all) { return all.closed; });
  }
}

TEST_CASE("control stream: text that is no UTF-8 arrives as it is") {
  Pair pair;
  const std::string words = "rank 1 was in allreduce \"caf\xe9 \xc3\"";
  proto::FromAgent said;
  said.mutable_said()->set_text(words);
  pair.client->send(said);
  const auto got =
      at_server(*pair.server, [](auto& all) { return !all.messages.empty() || all.closed; });
  REQUIRE(!got.messages.empty());
  REQUIRE(got.messages.front().said().text() == words);
  proto::ToAgent refusal;
  refusal.mutable_refuse_epoch()->set_reason(words);
  pair.server->send(got.session, refusal);
  const auto orders =
      at_client(*pair.client, [](auto& all) { return !all.messages.empty() || all.closed; });
  REQUIRE(!orders.messages.empty());
  REQUIRE(orders.messages.front().refuse_epoch().reason() == words);
}

TEST_CASE("control stream: no message has a field whose bytes could break it") {
  const google::protobuf::FileDescriptor* file = proto::FromAgent::descriptor()->file();
  REQUIRE(file->message_type_count() > 10);
  for (int i = 0; i < file->message_type_count(); ++i) {
    const google::protobuf::Descriptor* message = file->message_type(i);
    CHECK(message->nested_type_count() == 0);  // else look into those too
    for (int k = 0; k < message->field_count(); ++k) {
      INFO(message->field(k)->full_name() << " has to be bytes");
      CHECK(message->field(k)->type() != google::protobuf::FieldDescriptor::TYPE_STRING);
    }
  }
}

TEST_CASE("control stream: a peer that is gone closes it") {
  SECTION("the agent") {
    Pair pair;
    pair.client->send(claimed(0));
    at_server(*pair.server, [](auto& all) { return !all.messages.empty(); });
    pair.client.reset();
    REQUIRE(at_server(*pair.server, [](auto& all) { return all.closed; }).closed);
  }
  SECTION("hvdrun") {
    Pair pair;
    pair.client->send(claimed(0));
    at_server(*pair.server, [](auto& all) { return !all.messages.empty(); });
    pair.server.reset();
    REQUIRE(at_client(*pair.client, [](auto& all) { return all.closed; }).closed);
    pair.client->send(claimed(1));  // dropped
    pair.client->finish();
  }
}

TEST_CASE("control stream: ends that nobody used can go at any moment") {
  for (int round = 0; round < 10; ++round) Pair pair;
}

}  // namespace hvd
