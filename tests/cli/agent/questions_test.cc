// Who is asked, and who is given up.
#include "cli/agent/questions.h"

#include "tests/support/catch.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

using Answer = Questions::Answer;
using Answers = std::vector<Answer>;
const TimePoint kStart{1'000s};

Questions make(int ranks) { return Questions(ranks, 150ms, 2s); }

}  // namespace

TEST_CASE("questions: nobody is asked while nothing is broken") {
  Questions questions = make(2);
  CHECK_FALSE(questions.open());
  CHECK_FALSE(questions.next_look());
}

TEST_CASE("questions: who is gone is not asked, and all gone ends it") {
  Questions questions = make(2);
  questions.ask(kStart, 1, Answers(2));
  REQUIRE(questions.next_look() == kStart + 150ms);
  const auto verdict = questions.look(kStart + 150ms, Answers{{.gone = true}, {.gone = true}});
  CHECK(verdict.give_up.empty());
  CHECK_FALSE(verdict.ask_again);
  CHECK_FALSE(questions.open());
}

TEST_CASE("questions: a stopped rank has 150 ms, any other one 2 s") {
  Questions questions = make(3);
  Answers answers{{.seen = 1}, {.stopped = true}, {}};
  questions.ask(kStart, 1, answers);
  auto verdict = questions.look(kStart + 150ms, answers);
  CHECK(verdict.give_up == std::vector<int>{1});
  CHECK_FALSE(verdict.ask_again);
  answers[1].gone = true;
  verdict = questions.look(kStart + 1'999ms, answers);
  CHECK(verdict.give_up.empty());
  verdict = questions.look(kStart + 2s, answers);
  CHECK(verdict.give_up == std::vector<int>{2});
}

TEST_CASE(
    "questions: a rank that answers is never given up, and is asked again until it is quiet") {
  Questions questions = make(2);
  Answers answers{{.seen = 5}, {.seen = 5}};
  questions.ask(kStart, 5, answers);
  TimePoint now = kStart;
  for (uint32_t trouble = 5; trouble < 200; ++trouble) {
    now += 150ms;
    const auto verdict = questions.look(now, answers);
    REQUIRE(verdict.give_up.empty());
    REQUIRE(verdict.ask_again);
    questions.ask(now, trouble + 1, answers);
    answers[0].seen = answers[1].seen = trouble + 1;
  }
  CHECK(questions.open());
}

TEST_CASE("questions: new trouble buys a silent rank no time") {
  Questions questions = make(3);
  Answers answers{{.seen = 1}, {}, {}};
  questions.ask(kStart, 1, answers);
  answers[2].gone = true;
  questions.ask(kStart + 1'900ms, 2, answers);
  answers[0].seen = 2;
  CHECK(questions.look(kStart + 2s, answers).give_up == std::vector<int>{1});
}

TEST_CASE("questions: a rank held by a debugger is asked once it is let go") {
  Questions questions = make(2);
  Answers answers{{.seen = 1}, {.held_by_debugger = true}};
  questions.ask(kStart, 1, answers);
  for (auto after = 150ms; after < 60s; after += 150ms)
    REQUIRE(questions.look(kStart + after, answers).give_up.empty());
  answers[1].held_by_debugger = false;
  CHECK(questions.look(kStart + 61s, answers).give_up.empty());
  CHECK(questions.look(kStart + 63s, answers).give_up == std::vector<int>{1});
}

TEST_CASE("questions: clocks that stood begin anew") {
  Questions questions = make(1);
  const Answers answers(1);
  questions.ask(kStart, 1, answers);
  questions.restart(kStart + 1h);
  CHECK(questions.look(kStart + 1h + 1'999ms, answers).give_up.empty());
  CHECK(questions.look(kStart + 1h + 2s, answers).give_up == std::vector<int>{0});
}

TEST_CASE("questions: counts may wrap") {
  Questions questions = make(1);
  Answers answers{{.seen = 0xffffffff}};
  questions.ask(kStart, 0xffffffff, answers);
  CHECK(questions.answered(0, 0xffffffff));
  questions.ask(kStart, 0, answers);
  CHECK_FALSE(questions.answered(0, 0xffffffff));
  CHECK(questions.answered(0, 0));
}
