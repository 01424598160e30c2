// Time that stands while the job does.
#include "runtime/base/job_clock.h"

#include "tests/support/catch.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

const TimePoint kStart{1000s};

}  // namespace

TEST_CASE("job clock: shows the time as long as nothing holds it") {
  const JobClock clock;
  CHECK(clock.time(kStart) == kStart);
  CHECK(clock.when(kStart + 5s) == kStart + 5s);
  CHECK_FALSE(clock.stands());
}

TEST_CASE("job clock: stands and goes on where it stood") {
  JobClock clock;
  clock.stand(JobClock::kSuspended, kStart + 1s);
  CHECK(clock.time(kStart + 1s) == kStart + 1s);
  CHECK(clock.time(kStart + 1h) == kStart + 1s);
  CHECK_FALSE(clock.when(kStart + 2s));
  clock.go_on(JobClock::kSuspended, kStart + 11s);
  CHECK(clock.time(kStart + 12s) == kStart + 2s);
  CHECK(clock.when(kStart + 2s) == kStart + 12s);
}

TEST_CASE("job clock: what it stood adds up") {
  JobClock clock;
  for (int i = 0; i < 10; ++i) {
    clock.stand(JobClock::kDebugger, kStart + i * 10s);
    clock.go_on(JobClock::kDebugger, kStart + i * 10s + 3s);
  }
  CHECK(clock.time(kStart + 100s) == kStart + 70s);
}

TEST_CASE("job clock: goes on when the last reason is gone, each counted once") {
  JobClock clock;
  clock.go_on(JobClock::kDebugger, kStart);  // of nothing
  clock.stand(JobClock::kSuspended, kStart);
  clock.stand(JobClock::kDebugger, kStart + 1s);
  clock.stand(JobClock::kDebugger, kStart + 2s);
  clock.go_on(JobClock::kSuspended, kStart + 3s);
  CHECK(clock.stands());
  CHECK(clock.time(kStart + 4s) == kStart);
  clock.go_on(JobClock::kDebugger, kStart + 5s);
  clock.go_on(JobClock::kSuspended, kStart + 6s);
  CHECK(clock.time(kStart + 6s) == kStart + 1s);
}

TEST_CASE("job clock: its word says all to a reader") {
  JobClock clock;
  for (int i = 0; i < 3; ++i) {
    CHECK(JobClock::time(clock.word(), kStart + 7s) == clock.time(kStart + 7s));
    clock.stand(JobClock::kSuspended, kStart + 1s);
    CHECK(JobClock::time(clock.word(), kStart + 7s) == clock.time(kStart + 7s));
    clock.go_on(JobClock::kSuspended, kStart + 2s);
  }
}

}  // namespace hvd
