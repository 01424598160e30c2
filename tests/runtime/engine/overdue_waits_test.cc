// Who is named in a wait that takes too long, by literals.
#include "runtime/engine/overdue_waits.h"

#include "tests/support/catch.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

using Ranks = std::vector<int>;

// Ranks 0 and 1, 2 and 3, 4. What is asked is answered at once, but by the silent.
struct Scene {
  explicit Scene(WorldShape hosts = {{{0, 2}, {2, 2}, {4, 1}}})
      : shape(std::move(hosts)), answers(shape) {}

  bool asks() const { return waits.asks(answers, now); }
  void ask() {
    if (shape.hosts.size() > 1 && now - asked_at < OverdueWaits::kAskAgain)
      pass(OverdueWaits::kAskAgain);
    REQUIRE(asks());
    asked_at = now;
    waits.asked(question = answers.ask(now), now);
    for (size_t host = 1; host < shape.hosts.size(); ++host)
      if (shape.hosts[host].first != silent) answers.answered(shape.hosts[host].first, question);
  }
  void pass(Clock::duration time) {
    for (const TimePoint end = now + time; now < end;) answers.look(now += 100ms);
  }
  // Those named; empty: nobody.
  Ranks judge() {
    auto verdict = waits.judge(answers, [this](OverdueWaits::Kind, int rank, uint64_t) {
      return over ? std::nullopt : std::optional(WaitingName{"loss", round, missing[rank]});
    });
    if (!verdict) return {};
    CHECK(verdict->waited == 2s);
    CHECK(verdict->wait.name == "loss");
    return verdict->wait.missing;
  }
  Ranks ask_and_judge() {
    ask();
    return judge();
  }

  const WorldShape shape;
  LeaderAnswers answers;
  OverdueWaits waits;
  TimePoint now{1000s}, asked_at{};
  uint32_t question = 0;
  int silent = -1;
  bool over = false;
  uint64_t round = 7;
  std::map<int, Ranks> missing;  // by who waits
};

constexpr auto kName = LogWords::kOverdueName;
constexpr auto kCall = LogWords::kOverdueCall;

}  // namespace

TEST_CASE("overdue waits: who is missing after two questions is named") {
  Scene scene;
  CHECK_FALSE(scene.asks());
  scene.waits.note(kName, 3, 99, 2s);
  CHECK(scene.waits.any());
  scene.missing[3] = {1, 4};
  CHECK(scene.judge().empty());  // nobody was asked
  CHECK(scene.ask_and_judge().empty());
  scene.missing[3] = {0, 4};  // 1 has come; that 0 is not there may be new
  CHECK(scene.ask_and_judge() == Ranks{4});
}

TEST_CASE("overdue waits: of one host both questions are answered at once") {
  Scene scene({{{0, 4}}});
  scene.waits.note(kName, 3, 99, 2s);
  scene.missing[3] = {1};
  CHECK(scene.ask_and_judge().empty());
  CHECK(scene.ask_and_judge() == Ranks{1});
}

// What ended elsewhere a moment ago seems to go on here, and all that have ended it to be missing.
TEST_CASE("overdue waits: a wait that ends between two questions blames nobody") {
  Scene scene;
  scene.waits.note(kCall, 3, 12, 2s);
  CHECK(scene.ask_and_judge().empty());  // all are in it
  scene.pass(1s);
  scene.missing[3] = {0, 1, 2, 4};
  CHECK(scene.ask_and_judge().empty());
  scene.over = true;
  CHECK(scene.ask_and_judge().empty());
  scene.waits.note(kCall, 3, 0, 2s);
  CHECK_FALSE(scene.waits.any());
  CHECK_FALSE(scene.asks());
}

TEST_CASE("overdue waits: another round of a name, and another wait, are judged anew") {
  Scene scene;
  scene.waits.note(kName, 3, 99, 2s);
  scene.missing[3] = {1};
  CHECK(scene.ask_and_judge().empty());
  SECTION("round") { scene.round = 8; }
  SECTION("wait") {
    scene.waits.note(kName, 3, 98, 2s);
    scene.pass(1s);
  }
  CHECK(scene.ask_and_judge().empty());
  CHECK(scene.ask_and_judge() == Ranks{1});
}

TEST_CASE("overdue waits: nobody waits for itself, nor is named for who has gone") {
  Scene scene;
  scene.waits.note(kName, 3, 99, 2s);
  scene.missing[3] = {3};
  for (int i = 0; i < 3; ++i, scene.pass(1s)) CHECK(scene.ask_and_judge().empty());
  scene.missing[3] = {1};
  CHECK(scene.ask_and_judge().empty());
  scene.waits.forget(3);
  CHECK_FALSE(scene.waits.any());
  CHECK_FALSE(scene.asks());
}

TEST_CASE("overdue waits: everybody is asked five times a second, whoever is suspected") {
  Scene scene;
  scene.waits.note(kName, 3, 99, 2s);
  scene.missing[3] = GENERATE(Ranks{}, Ranks{1});
  CHECK(scene.ask_and_judge().empty());
  CHECK_FALSE(scene.asks());
  scene.pass(100ms);
  CHECK_FALSE(scene.asks());
  scene.pass(100ms);
  CHECK(scene.asks());
}

TEST_CASE("overdue waits: one question at a time") {
  Scene scene;
  scene.silent = 4;
  scene.waits.note(kName, 3, 99, 2s);
  scene.ask();
  scene.waits.note(kName, 1, 98, 2s);
  scene.pass(1s);
  CHECK_FALSE(scene.asks());
  scene.answers.answered(4, scene.question);
  CHECK(scene.asks());
}

TEST_CASE("overdue waits: a leader that owes an answer for three seconds stands for its host") {
  struct Case {
    Ranks missing, named;
  };
  const auto one = GENERATE(values<Case>({{{1, 3}, {1, 2}}, {{3}, {2}}, {{}, {2}}}));
  CAPTURE(one.missing);
  Scene scene;
  scene.silent = 2;
  scene.waits.note(kName, 4, 99, 2s);
  scene.missing[4] = one.missing;
  CHECK(scene.ask_and_judge().empty());
  scene.pass(2900ms);
  CHECK(scene.judge().empty());
  CHECK_FALSE(scene.asks());
  scene.pass(100ms);
  CHECK(scene.judge().empty());
  CHECK(scene.ask_and_judge() == one.named);
}

TEST_CASE("overdue waits: a silent leader does not keep others from being named") {
  Scene scene;
  scene.silent = 2;
  scene.waits.note(kName, 3, 98, 2s);
  scene.ask();
  scene.pass(1s);
  scene.waits.note(kCall, 4, 12, 2s);
  scene.missing[4] = {1};
  scene.pass(2s);
  CHECK(scene.ask_and_judge().empty());
  CHECK(scene.ask_and_judge() == Ranks{1});
}

TEST_CASE("overdue waits: below a silent leader it is not known whether anybody waits") {
  Scene scene;
  scene.silent = 2;
  scene.waits.note(kName, 3, 99, 2s);
  scene.missing[3] = {0, 1, 4};
  scene.ask();
  for (int i = 0; i < 100; ++i, scene.pass(100ms)) CHECK(scene.judge().empty());
  scene.answers.answered(2, scene.question);
  scene.silent = -1;
  scene.over = true;
  CHECK(scene.judge().empty());
}
