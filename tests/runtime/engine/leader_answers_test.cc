// Who owes rank 0 an answer, and for how long, by literals.
#include "runtime/engine/leader_answers.h"

#include "tests/support/catch.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

const TimePoint kStart{1000s};
// Ranks 0 and 1, 2 and 3, 4.
const WorldShape kShape{{{0, 2}, {2, 2}, {4, 1}}};

using Ranks = std::vector<int>;

}  // namespace

TEST_CASE("leader answers: of one host nobody owes any") {
  LeaderAnswers answers({{{0, 4}}});
  const uint32_t question = answers.ask(kStart);
  CHECK(answers.has_all(question));
  CHECK(answers.has(3, question));
  CHECK_FALSE(answers.owed());
}

TEST_CASE("leader answers: a leader answers for its host, rank 0's host at once") {
  LeaderAnswers answers(kShape);
  CHECK_FALSE(answers.owed());
  const uint32_t question = answers.ask(kStart);
  CHECK(answers.owed());
  CHECK(answers.owing(question) == Ranks{2, 4});
  CHECK(answers.has(1, question));
  CHECK_FALSE(answers.has(3, question));
  answers.answered(2, question);
  answers.answered(2, question);
  CHECK(answers.has(3, question));
  CHECK(answers.owing(question) == Ranks{4});
  CHECK(answers.owed());
  answers.answered(4, question);
  CHECK(answers.has_all(question));
  CHECK_FALSE(answers.owed());
}

TEST_CASE("leader answers: an answer to an earlier question is none to a later one") {
  LeaderAnswers answers(kShape);
  const uint32_t first = answers.ask(kStart), second = answers.ask(kStart);
  for (const int leader : {2, 4}) answers.answered(leader, first);
  CHECK(answers.has_all(first));
  CHECK(answers.owing(second) == Ranks{2, 4});
  CHECK(answers.owed());
  for (const int leader : {2, 4}) answers.answered(leader, UINT32_MAX);  // of what was asked
  CHECK_FALSE(answers.has(2, second + 1));
  CHECK_FALSE(answers.owed());
}

TEST_CASE("leader answers: who has left owes nothing") {
  LeaderAnswers answers(kShape);
  answers.left(2);
  const uint32_t question = answers.ask(kStart);
  CHECK(answers.owing(question) == Ranks{4});
  answers.left(4);
  answers.left(4);
  CHECK(answers.has_all(question));
  CHECK_FALSE(answers.owed());
  answers.answered(4, question);
  CHECK_FALSE(answers.owed());
}

TEST_CASE("leader answers: silence is the time since it was asked, or last said anything") {
  LeaderAnswers answers(kShape);
  answers.look(kStart - 1s);  // before it is asked
  const uint32_t first = answers.ask(kStart);
  answers.look(kStart + 1s);
  CHECK(answers.silent(1s) == Ranks{2, 4});
  CHECK(answers.silent(1001ms).empty());
  const uint32_t second = answers.ask(kStart + 2s);
  answers.answered(2, first);
  answers.look(kStart + 3s);
  CHECK(answers.silent(1s) == Ranks{2, 4});
  CHECK(answers.silent(2s) == Ranks{4});
  CHECK(answers.is_silent(4, 3s));
  answers.answered(4, second);
  CHECK_FALSE(answers.is_silent(4, 0s));
  CHECK_FALSE(answers.is_silent(0, 0s));
}

TEST_CASE("leader answers: while rank 0 stood still nobody was silent") {
  LeaderAnswers answers(kShape);
  answers.ask(kStart);
  answers.look(kStart + 60s);
  CHECK(answers.silent(2s).empty());
  answers.look(kStart + 61s);
  CHECK(answers.silent(2s) == Ranks{2, 4});
}
