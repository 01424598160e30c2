// What hvdrun tells the agents of an epoch that has ranks on several hosts.
#include "cli/epoch_relay.h"

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "tests/support/catch.h"

namespace hvd {
namespace {

using Sent = std::vector<std::pair<int, proto::ToAgent>>;

// Ranks 0, 1 on host 0 and 2, 3 on host 2, as they were started; in the world the last come first.
action::StartEpoch two_hosts(uint32_t epoch) {
  action::StartEpoch start{epoch, {}};
  for (const auto& [rank, number] : {std::pair{2, 0}, {3, 1}, {0, 2}, {1, 3}}) {
    World world;
    world.epoch = epoch;
    world.rank = number;
    world.size = 4;
    world.host = std::string(rank < 2 ? "host a" : "host c");
    start.members.push_back({rank, world, rank < 2 ? 0 : 2});
  }
  return start;
}

proto::Listening at(const std::string& address, const std::string& trouble = "") {
  proto::Listening listening;
  listening.add_addresses(address);
  listening.add_troubles(trouble);
  return listening;
}

std::vector<int> list(const google::protobuf::RepeatedField<int>& numbers) {
  return {numbers.begin(), numbers.end()};
}

}  // namespace

TEST_CASE(
    "epoch relay: each host learns who its members are, and where the others' agent listens") {
  Sent sent;
  EpochRelay relay([&](int host, const proto::ToAgent& order) { sent.emplace_back(host, order); });
  relay.note(0, at("10.0.0.1:4000"));
  relay.note(1, at("10.0.0.9:4000"));
  relay.note(2, at("", "no port is free"));
  relay.start(two_hosts(7));
  REQUIRE(sent.size() == 2);
  CHECK(sent[0].first == 0);
  const proto::StartEpoch& first = sent[0].second.start_epoch();
  CHECK(first.epoch() == 7);
  CHECK(list(first.ranks()) == std::vector{0, 1});
  CHECK(first.worlds(1).rank() == 3);
  REQUIRE(first.others_size() == 1);
  CHECK(first.others(0).name() == "host c");
  CHECK(first.others(0).trouble() == "no port is free");
  CHECK(list(first.others(0).ranks()) == std::vector{2, 3});
  CHECK(list(first.others(0).numbers()) == std::vector{0, 1});
  CHECK(sent[1].first == 2);
  const proto::OtherHost& other = sent[1].second.start_epoch().others(0);
  CHECK(other.name() == "host a");
  CHECK(other.address() == "10.0.0.1:4000");
}

TEST_CASE("epoch relay: what is no address of a host's is a trouble of that host") {
  for (const char* said :
       {"nonsense", "10.0.0.1", "10.0.0.1:99999", "h1:4000", "[fd00::1%1]:4000", ""}) {
    Sent sent;
    EpochRelay relay(
        [&](int host, const proto::ToAgent& order) { sent.emplace_back(host, order); });
    relay.note(0, at(said));
    relay.note(2, at("[fd00::1]:4000"));
    relay.start(two_hosts(7));
    REQUIRE(sent.size() == 2);
    const proto::OtherHost& bad = sent[1].second.start_epoch().others(0);
    CHECK(bad.name() == "host a");
    CHECK(bad.address().empty());
    CHECK_FALSE(bad.trouble().empty());
    CHECK(bad.trouble().find(said) != std::string::npos);
    CHECK(sent[0].second.start_epoch().others(0).address() == "[fd00::1]:4000");
    CHECK(sent[0].second.start_epoch().others(0).trouble().empty());
  }
}

namespace {

// A relay whose epoch 7 has begun, and what it has sent since.
struct Begun {
  Sent sent;
  EpochRelay relay{
      [this](int host, const proto::ToAgent& order) { sent.emplace_back(host, order); }};
  Begun() {
    relay.start(two_hosts(7));
    sent.clear();
  }
};

proto::Died died(uint32_t epoch, const std::vector<int>& ranks) {
  proto::Died message;
  message.set_epoch(epoch);
  message.mutable_ranks()->Add(ranks.begin(), ranks.end());
  return message;
}

}  // namespace

TEST_CASE("epoch relay: what a host says of its ranks goes to the others, if it is of this epoch") {
  Begun begun;
  proto::Broken broken;
  broken.set_epoch(7);
  broken.set_reason("rank 1 waited 10 s");
  broken.add_waited_for(3);
  for (const uint32_t epoch : {6u, 8u}) {
    broken.set_epoch(epoch);
    begun.relay.note(0, died(epoch, {1}));
    begun.relay.note(0, broken);
  }
  CHECK(begun.sent.empty());
  broken.set_epoch(7);
  begun.relay.note(0, broken);
  begun.relay.note(0, died(7, {1}));
  begun.relay.note(2, died(7, {1, 9}));  // not its own, nobody's
  REQUIRE(begun.sent.size() == 1);
  begun.relay.flush();
  begun.relay.flush();
  REQUIRE(begun.sent.size() == 2);
  CHECK(begun.sent[0].first == 2);
  CHECK(begun.sent[0].second.broken().reason() == "rank 1 waited 10 s");
  CHECK(list(begun.sent[0].second.broken().waited_for()) == std::vector{3});
  CHECK(begun.sent[1].first == 2);
  CHECK(list(begun.sent[1].second.died().ranks()) == std::vector{1});
  // Of several hosts in one turn it goes to all of them.
  begun.sent.clear();
  begun.relay.note(0, died(7, {0}));
  begun.relay.note(2, died(7, {3}));
  begun.relay.flush();
  REQUIRE(begun.sent.size() == 2);
  for (const auto& [host, order] : begun.sent)
    CHECK(list(order.died().ranks()) == std::vector{0, 3});
  // Each is told of once, however often a host says it.
  begun.sent.clear();
  begun.relay.note(2, died(7, {3, 3, 2, 2}));
  begun.relay.note(2, died(7, {2}));
  begun.relay.flush();
  REQUIRE(begun.sent.size() == 1);
  CHECK(list(begun.sent[0].second.died().ranks()) == std::vector{2});
}

TEST_CASE("epoch relay: the first reason is passed on, a second one is not") {
  for (const bool by_death : {false, true}) {
    Begun begun;
    proto::Broken broken;
    broken.set_epoch(7);
    broken.set_reason("rank 1 waited 10 s");
    if (by_death)
      begun.relay.note(2, died(7, {3}));
    else
      begun.relay.note(0, broken);
    broken.set_reason("rank 2 waited 10 s");
    begun.relay.note(2, broken);
    begun.relay.flush();
    REQUIRE(begun.sent.size() == 1);
    CHECK(begun.sent[0].second.has_died() == by_death);
    CHECK(begun.sent[0].first == (by_death ? 0 : 2));
  }
}

TEST_CASE("epoch relay: the ranks of a lost host that had not ended are dead to the others, once") {
  Begun begun;
  begun.relay.note_end(3);
  begun.relay.lose(2, "the agent on c was lost");
  begun.relay.lose(2, "again");
  begun.relay.lose(1, "of no rank of this epoch");
  begun.relay.flush();
  REQUIRE(begun.sent.size() == 2);
  CHECK(begun.sent[0].first == 0);
  CHECK(begun.sent[0].second.broken().reason() == "the agent on c was lost");
  CHECK(begun.sent[0].second.broken().epoch() == 7);
  CHECK(list(begun.sent[1].second.died().ranks()) == std::vector{2});
}

namespace {

proto::StoreQuestion question(int rank, uint32_t id, proto::StoreQuestion::Kind kind,
                              int64_t value = -1, const std::string& body = "") {
  proto::StoreQuestion message;
  message.set_epoch(7);
  message.set_rank(rank);
  message.set_kind(kind);
  message.set_id(id);
  message.set_key("port");
  message.set_value(value);
  message.set_body(body);
  return message;
}

const TimePoint kNow{std::chrono::seconds(1000)};

}  // namespace

TEST_CASE("epoch relay: what a rank of one host sets, one of another reads") {
  Begun begun;
  begun.relay.note(2, question(3, 5, proto::StoreQuestion::GET), kNow);
  CHECK(begun.sent.empty());
  begun.relay.note(0, question(1, 9, proto::StoreQuestion::SET, 0, "4000"), kNow);
  REQUIRE(begun.sent.size() == 2);
  const proto::StoreAnswer& set = begun.sent[0].second.store_answer();
  CHECK(begun.sent[0].first == 0);
  CHECK(set.rank() == 1);
  CHECK(set.id() == 9);
  CHECK_FALSE(set.refused());
  const proto::StoreAnswer& got = begun.sent[1].second.store_answer();
  CHECK(begun.sent[1].first == 2);
  CHECK(got.epoch() == 7);
  CHECK(got.rank() == 3);
  CHECK(got.id() == 5);
  CHECK(got.body() == "4000");
  begun.sent.clear();
  // What is no question of this epoch, or of a rank of that host, or none at all.
  proto::StoreQuestion old = question(1, 10, proto::StoreQuestion::GET);
  old.set_epoch(6);
  begun.relay.note(0, old, kNow);
  begun.relay.note(2, question(1, 11, proto::StoreQuestion::GET), kNow);
  begun.relay.note(0, question(1, 12, proto::StoreQuestion::Kind(9)), kNow);
  proto::StoreQuestion large = question(1, 13, proto::StoreQuestion::WAIT, 0);
  large.set_key(std::string(257, 'k'));  // more than a rank can ask its agent for
  begun.relay.note(0, large, kNow);
  begun.relay.note(0, question(1, 14, proto::StoreQuestion::SET, 0, std::string(65'537, 'x')),
                   kNow);
  begun.relay.tick(kNow);
  CHECK(begun.sent.empty());
}

TEST_CASE("epoch relay: a wait in the store ends in time, or with the epoch, and says why") {
  Begun begun;
  begun.relay.note(0, question(1, 1, proto::StoreQuestion::WAIT, 50), kNow);
  begun.relay.note(2, question(2, 2, proto::StoreQuestion::GET), kNow);
  REQUIRE(begun.relay.deadline() == kNow + std::chrono::milliseconds(50));
  begun.relay.note_end(0);
  begun.relay.tick(kNow + std::chrono::milliseconds(50));
  REQUIRE(begun.sent.size() == 1);
  CHECK(begun.sent[0].second.store_answer().refused());
  CHECK(begun.sent[0].second.store_answer().value() == int(ErrorCode::kTimeout));
  CHECK(begun.sent[0].second.store_answer().body() ==
        "rank 3 waited 50 ms for \"port\" in the store; not there since: rank 1 (was never here), "
        "rank 2 (ended)");
  begun.sent.clear();
  begun.relay.note(0, died(7, {1}));
  begun.relay.flush();
  REQUIRE(begun.sent.size() == 2);  // the wait of rank 2, and the death
  CHECK(begun.sent[0].second.store_answer().value() == kCommFailureCode);
  CHECK(begun.sent[0].second.store_answer().body() ==
        "rank 3 has died; \"port\" is not in the store");
  // The next epoch's is a new one.
  begun.relay.start(two_hosts(8));
  CHECK_FALSE(begun.relay.deadline());
}

TEST_CASE("epoch relay: a world on one host has its store there") {
  Sent sent;
  EpochRelay relay([&](int host, const proto::ToAgent& order) { sent.emplace_back(host, order); });
  action::StartEpoch start = two_hosts(7);
  start.members.resize(2);
  relay.start(start);
  sent.clear();
  relay.note(2, question(2, 1, proto::StoreQuestion::SET, 0, "1"), kNow);
  CHECK(sent.empty());
}

TEST_CASE("epoch relay: before the first epoch there is nobody to tell") {
  Sent sent;
  EpochRelay relay([&](int host, const proto::ToAgent& order) { sent.emplace_back(host, order); });
  relay.note(0, died(0, {1}));
  relay.lose(0, "the agent on a was lost");
  relay.flush();
  CHECK(sent.empty());
}

}  // namespace hvd
