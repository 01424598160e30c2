// When a host's time is over.
#include "cli/ssh/start_time.h"

#include "tests/support/catch.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

const TimePoint kBegin{1h};

}  // namespace

TEST_CASE("start_time: it begins with the host's turn, or when it need not be there before") {
  StartTime late(30s, Deadline::at(kBegin));
  CHECK_FALSE(late.passed(kBegin + 600s));
  late.begin(kBegin + 600s);
  CHECK_FALSE(late.passed(kBegin + 629s));
  CHECK(late.passed(kBegin + 630s));
  StartTime waited_for(30s, Deadline::at(kBegin + 100s));
  waited_for.begin(kBegin);
  CHECK(waited_for.next() == kBegin + 130s);
}

TEST_CASE("start_time: whoever was reached has no longer for being waited for") {
  StartTime time(3s, Deadline::at(kBegin + 600s));
  time.begin(kBegin);
  time.connect_within(10s, kBegin);
  CHECK_FALSE(time.is_silent(kBegin + 12s));  // it may be connecting
  CHECK(time.is_silent(kBegin + 13s));
  time.reached(kBegin + 5s);
  CHECK_FALSE(time.is_silent(kBegin + 13s));
  CHECK(time.next() == kBegin + 8s);
  time.reached(kBegin + 6s);  // it says more
  CHECK(time.passed(kBegin + 8s));
}

TEST_CASE("start_time: it is no longer for being reached, where nobody waits for the host") {
  StartTime time(30s, Deadline::at(kBegin));
  time.begin(kBegin);
  time.connect_within({}, kBegin);
  time.reached(kBegin + 29s);
  CHECK(time.passed(kBegin + 30s));
}

TEST_CASE("start_time: it stands while the host takes what is sent, however long that is") {
  StartTime time(3s, Deadline::at(kBegin));
  time.begin(kBegin);
  for (auto at = 2s; at < 600s; at += 2s) {
    REQUIRE_FALSE(time.passed(kBegin + at));
    time.taken(false, at, kBegin + at);
  }
  CHECK(time.passed(kBegin + 601s));
  time.taken(true, 600s, kBegin + 600s);  // the last bytes are on their way
  CHECK_FALSE(time.passed(kBegin + 1199s));
  CHECK(time.passed(kBegin + 1200s));
  time.taken(true, 1s, kBegin + 600s);
  CHECK_FALSE(time.passed(kBegin + 1199s));
}

TEST_CASE("start_time: what hvdrun was stopped for is no host's") {
  StartTime time(3s, Deadline::at(kBegin + 1s));
  time.begin(kBegin);
  time.connect_within(1s, kBegin);
  time.excuse(60s);
  CHECK_FALSE(time.is_silent(kBegin + 63s));
  CHECK(time.may_wait(kBegin + 60s));
  CHECK(time.next() == kBegin + 64s);
}

}  // namespace hvd
