// How long readers are waited for: those that stand still, slow ones, and while hvdrun was stopped.
#include "cli/reader_watch.h"

#include "tests/support/catch.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;
using Due = ReaderWatch::Due;

constexpr TimePoint kStart{1000s};

// Looks whenever it is due up to `end`; returns when it first said `due`, from the start.
std::optional<Clock::duration> when(ReaderWatch& watch, Due due, Clock::duration end, bool takes,
                                    bool ranks_ended) {
  while (true) {
    const auto at = watch.deadline();
    if (!at || *at > kStart + end) return std::nullopt;
    const Due seen = watch.look(*at, takes, ranks_ended);
    if (seen == due) return *at - kStart;
    REQUIRE(seen == Due::kNothing);
  }
}

}  // namespace

TEST_CASE("reader watch: without a limit a reader is waited for") {
  ReaderWatch watch;
  CHECK_FALSE(watch.deadline());
  CHECK(watch.look(kStart + 1h, false, true) == Due::kNothing);
}

TEST_CASE("reader watch: who takes nothing is given up, whether ranks run or not") {
  for (const bool ended : {false, true}) {
    ReaderWatch watch;
    watch.limit(5s, false, kStart);
    CHECK(when(watch, Due::kGiveUp, 1h, false, ended) == 5s);
    CHECK(watch.dropped());
    CHECK_FALSE(watch.deadline());
  }
}

TEST_CASE("reader watch: who takes something is waited for, or has its time from the ranks' end") {
  ReaderWatch patient, strict;
  patient.limit(5s, false, kStart);
  CHECK_FALSE(when(patient, Due::kGiveUp, 1h, true, true));
  CHECK_FALSE(patient.dropped());
  strict.limit(5s, true, kStart);
  CHECK_FALSE(when(strict, Due::kDrop, 60s, true, false));
  CHECK(when(strict, Due::kDrop, 1h, true, true) == 65s);
  CHECK(strict.dropped());
  // What else there is goes out as long as it is taken.
  CHECK_FALSE(when(strict, Due::kGiveUp, 2h, true, true));
  CHECK(when(strict, Due::kGiveUp, 3h, false, true) == 2h + 5s);
}

TEST_CASE("reader watch: a later limit only makes it come sooner, and has its own time") {
  ReaderWatch watch;
  watch.limit(4s, false, kStart);
  CHECK_FALSE(when(watch, Due::kDrop, 100s, true, true));
  watch.limit(10s, true, kStart + 100s);
  CHECK(when(watch, Due::kDrop, 1h, true, true) == 110s);
  ReaderWatch hurried;
  hurried.limit(10s, true, kStart);
  CHECK_FALSE(when(hurried, Due::kDrop, 2s, true, true));
  hurried.limit(200ms, true, kStart + 2s);
  const auto at = when(hurried, Due::kDrop, 1h, true, true);
  REQUIRE(at);
  CHECK(*at <= 3s);
}

TEST_CASE("reader watch: a stop of hvdrun costs a reader a tick at the most") {
  for (const auto patience : {200ms, 4000ms}) {
    ReaderWatch watch;
    watch.limit(patience, true, kStart);
    CHECK(watch.look(kStart + 1h, false, true) == Due::kNothing);
    CHECK(watch.look(kStart + 2h, false, true) == Due::kNothing);
    CHECK_FALSE(watch.dropped());
  }
}

}  // namespace hvd
