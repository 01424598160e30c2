// RendezvousServer and RendezvousClient over a socketpair: order, ends, and a peer that is gone.
#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <vector>

#include "tests/rendezvous/control_ends.h"

namespace hvd {
namespace {

struct Pair {
  Pair() {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    server = std::make_unique<RendezvousServer>();
    server->add(UniqueFd(ends[0]));
    client = std::make_unique<RendezvousClient>(UniqueFd(ends[1]));
  }
  std::unique_ptr<RendezvousServer> server;
  std::unique_ptr<RendezvousClient> client;
};

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

TEST_CASE("control stream: an order may be as long as a frame") {
  Pair pair;
  pair.client->send(claimed(0));
  const int session = at_server(*pair.server, has_message).session;
  const proto::ToAgent order = long_order();
  pair.server->send(session, order);
  const auto got =
      at_client(*pair.client, [](auto& all) { return !all.messages.empty() || all.closed; });
  REQUIRE(got.messages.size() == 1);
  CHECK(got.messages.front().refuse_epoch().reason() == order.refuse_epoch().reason());
}

TEST_CASE("control stream: no message has a field whose bytes could break it") {
  const google::protobuf::FileDescriptor* file = proto::FromAgent::descriptor()->file();
  REQUIRE(file->message_type_count() > 10);
  std::vector<const google::protobuf::Descriptor*> messages;
  for (int i = 0; i < file->message_type_count(); ++i) messages.push_back(file->message_type(i));
  for (size_t i = 0; i < messages.size(); ++i) {
    const google::protobuf::Descriptor& message = *messages[i];
    for (int k = 0; k < message.nested_type_count(); ++k)
      messages.push_back(message.nested_type(k));
    for (int k = 0; k < message.field_count(); ++k) {
      INFO(message.field(k)->full_name() << " has to be bytes");
      CHECK(message.field(k)->type() != google::protobuf::FieldDescriptor::TYPE_STRING);
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

TEST_CASE("control stream: what the owner does not take waits at who says it") {
  constexpr int kAll = 5000;
  Pair pair;
  proto::FromAgent first;
  SECTION("many") { first = claimed(0); }
  SECTION("large") { first.mutable_said()->set_text(std::string(100'000, 'x')); }
  pair.client->send(first);
  for (int i = 1; i < kAll; ++i) pair.client->send(claimed(i));
  for (int i = 0; i < 200 && first.has_said(); ++i) pair.client->send(first);
  const int all = kAll + (first.has_said() ? 200 : 0);
  pair.client->finish();
  // An end that would read everything at once has done so by then, and closes the stream.
  pollfd closed{pair.client->wake_fd(), POLLIN, 0};
  CHECK(poll(&closed, 1, 300) == 0);
  size_t most = 0, most_bytes = 0;
  int got = 0;
  for (bool over = false; !over;) {
    wait_readable(pair.server->wake_fd(), Deadline::in(std::chrono::seconds(20)));
    for (const auto& news : pair.server->take()) {
      most = std::max(most, news.messages.size());
      size_t bytes = 0;
      for (const auto& message : news.messages) {
        if (message.has_claimed()) REQUIRE(message.claimed().rank() == got);
        ++got;
        bytes += message.ByteSizeLong();
      }
      most_bytes = std::max(most_bytes, bytes);
      over = news.closed;
    }
  }
  CHECK(got == all);
  CHECK(most <= 1024);
  CHECK(most_bytes <= (8u << 20) + 200'000);
  at_client(*pair.client, [](auto& one) { return one.closed; });
}

TEST_CASE("control stream: whoever reads nothing is given up once too much waits") {
  constexpr int kEnough = 300;  // MiB
  const std::string words(1 << 20, 'x');
  const std::string why = "reads nothing: 128 MiB of what it was told wait";
  Pair pair;
  pair.client->send(claimed(0));
  const int session = at_server(*pair.server, has_message).session;
  SECTION("the agent") {
    proto::ToAgent refusal;
    refusal.mutable_refuse_epoch()->set_reason(words);
    for (int i = 0; i < kEnough; ++i) pair.server->send(session, refusal);
    CHECK(at_server(*pair.server, [](auto& all) { return all.closed; }).why == "it " + why);
    CHECK(at_client(*pair.client, [](auto& all) { return all.closed; }).closed);
  }
  SECTION("hvdrun") {
    proto::FromAgent said;
    said.mutable_said()->set_text(words);
    for (int i = 0; i < kEnough; ++i) pair.client->send(said);
    CHECK(at_client(*pair.client, [](auto& all) { return all.closed; }).why == "hvdrun " + why);
    const auto left = at_server(*pair.server, [](auto& all) { return all.closed; });
    CHECK(left.why.empty());  // it is not the agent's fault
  }
}

TEST_CASE("control stream: ends that nobody used can go at any moment") {
  for (int round = 0; round < 10; ++round) Pair pair;
}

}  // namespace hvd
