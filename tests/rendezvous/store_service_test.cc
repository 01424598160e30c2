// The Store's end of its ranks: answers at once, later, and never.
#include "rendezvous/store_service.h"

#include <map>

#include "tests/support/catch.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

const TimePoint kStart{1'000s};

struct Service {
  std::map<std::pair<int, uint32_t>, AgentMessage> answers;  // by local rank and id
  StoreService service;

  explicit Service(std::vector<int> ranks)
      : service(3, std::move(ranks), [this](int local_rank, const AgentMessage& answer) {
          REQUIRE(answer.epoch == 3);
          AgentMessage& kept = answers[{local_rank, answer.id}];
          kept.kind = answer.kind;
          kept.value = answer.value;
          kept.body = answer.body;
        }) {}

  void ask(int local_rank, uint32_t id, AgentMessage::Kind kind, const std::string& key,
           int64_t value, TimePoint now, const std::string& body = "") {
    AgentMessage question;
    question.kind = kind;
    question.epoch = 3;
    question.id = id;
    question.key = key;
    question.value = value;
    question.body = to_bytes(body);
    service.handle(local_rank, question, now);
  }
  bool answered(int local_rank, uint32_t id) { return answers.count({local_rank, id}) != 0; }
  std::string text(int local_rank, uint32_t id) {
    REQUIRE(answered(local_rank, id));
    return answers[{local_rank, id}].text();
  }
};

}  // namespace

TEST_CASE("store service: who waits is answered when the key is set, with or without its value") {
  Service store({0, 1, 2});
  store.ask(0, 1, AgentMessage::kStoreGet, "k", -1, kStart);
  store.ask(1, 1, AgentMessage::kStoreWait, "k", -1, kStart);
  CHECK_FALSE(store.answered(0, 1));
  store.ask(2, 7, AgentMessage::kStoreSet, "k", 0, kStart, "value");
  CHECK(store.answers[{2, 7}].kind == AgentMessage::kStoreAnswer);
  CHECK(store.text(0, 1) == "value");
  CHECK(store.text(1, 1).empty());
  store.ask(1, 2, AgentMessage::kStoreGet, "k", 0, kStart);
  CHECK(store.text(1, 2) == "value");
}

TEST_CASE("store service: counters answer with their sum and wake who waits") {
  Service store({0, 1});
  store.ask(0, 1, AgentMessage::kStoreGet, "n", -1, kStart);
  store.ask(1, 1, AgentMessage::kStoreAdd, "n", 5, kStart);
  CHECK(store.answers[{1, 1}].value == 5);
  CHECK(store.text(0, 1) == "5");
}

TEST_CASE("store service: a deadline names the key and who has not been there") {
  Service store({4, 5, 6, 7});
  store.ask(1, 1, AgentMessage::kStoreSet, "mine", 0, kStart - 5s, "");
  store.ask(2, 1, AgentMessage::kStoreGet, "other", -1, kStart - 1s);
  store.ask(0, 1, AgentMessage::kStoreGet, "theirs", 100, kStart);
  REQUIRE(store.service.deadline() == kStart + 100ms);
  store.service.tick(kStart + 99ms);
  CHECK_FALSE(store.answered(0, 1));
  store.service.tick(kStart + 100ms);
  CHECK(store.answers[{0, 1}].value == static_cast<int64_t>(ErrorCode::kTimeout));
  CHECK(store.text(0, 1) ==
        "rank 4 waited 100 ms for \"theirs\" in the store; not there since: rank 5, rank 7 (was "
        "never here)");
  CHECK_FALSE(store.service.deadline());
}

TEST_CASE("store service: an ended rank is called so, and waits for nothing") {
  Service store({0, 1});
  store.ask(1, 1, AgentMessage::kStoreGet, "x", 10, kStart);
  store.service.ended(1);
  store.ask(0, 1, AgentMessage::kStoreGet, "x", 10, kStart);
  store.service.tick(kStart + 1s);
  CHECK_FALSE(store.answered(1, 1));
  CHECK_THAT(store.text(0, 1), Catch::EndsWith("not there since: rank 1 (ended)"));
}

TEST_CASE("store service: when all have been there, the text says so") {
  Service store({0, 1});
  store.ask(0, 1, AgentMessage::kStoreGet, "x", 10, kStart);
  store.ask(1, 1, AgentMessage::kStoreSet, "y", 0, kStart + 5ms);
  store.service.tick(kStart + 1s);
  CHECK_THAT(store.text(0, 1), Catch::EndsWith("none has set it"));
}

TEST_CASE("store service: another epoch's question is dropped, limits are refused, clocks stand") {
  Service store({0, 1});
  AgentMessage old;
  old.kind = AgentMessage::kStoreSet;
  old.epoch = 2;
  old.key = "k";
  store.service.handle(0, old, kStart);
  CHECK(store.answers.empty());
  store.ask(0, 2, AgentMessage::kStoreSet, "", 0, kStart);
  CHECK(store.answers[{0, 2}].kind == AgentMessage::kStoreRefused);
  store.ask(0, 3, AgentMessage::kStoreGet, "x", 10, kStart);
  store.service.tick(kStart + 9ms);
  CHECK_FALSE(store.answered(0, 3));
  for (uint32_t id = 4; id < 2'000; ++id)
    store.ask(0, id, AgentMessage::kStoreWait, "x", -1, kStart);
  CHECK_FALSE(store.answered(0, 1'000));
  CHECK_THAT(store.text(0, 1'500), Catch::Contains("1024 calls"));
}

TEST_CASE("store service: a broken epoch fails who waits, and its table stands still") {
  Service store({0, 1, 2});
  store.ask(0, 1, AgentMessage::kStoreSet, "there", 0, kStart, "value");
  store.ask(0, 2, AgentMessage::kStoreGet, "missing", -1, kStart);
  store.service.broken("rank 2 has died");
  store.service.broken("a later reason");
  CHECK(store.answers[{0, 2}].value == kCommFailureCode);
  CHECK(store.text(0, 2) == "rank 2 has died; \"missing\" is not in the store");
  store.ask(1, 1, AgentMessage::kStoreSet, "missing", 0, kStart);
  store.ask(1, 2, AgentMessage::kStoreAdd, "n", 1, kStart);
  store.ask(1, 3, AgentMessage::kStoreGet, "missing", -1, kStart);
  for (uint32_t id : {1u, 2u, 3u}) CHECK(store.answers[{1, id}].value == kCommFailureCode);
  store.ask(1, 4, AgentMessage::kStoreGet, "there", -1, kStart);
  CHECK(store.text(1, 4) == "value");
}
