// Errors, environment, deadlines, fault points.
#include <cstdlib>

#include "runtime/base/deadline.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/base/fault_point.h"
#include "tests/support/catch.h"

using namespace hvd;

TEST_CASE("env: a number that is none is named") {
  setenv("HVD_TEST_NUMBER", "12", 1);
  CHECK(env::get_integer("HVD_TEST_NUMBER") == 12);
  setenv("HVD_TEST_NUMBER", "12x", 1);
  CHECK_THROWS_WITH(env::get_integer("HVD_TEST_NUMBER"), Catch::Contains("HVD_TEST_NUMBER=12x"));
  env::unset("HVD_TEST_NUMBER");
  CHECK_FALSE(env::get_integer("HVD_TEST_NUMBER").has_value());
}

TEST_CASE("deadline: never has no timeout and does not pass") {
  CHECK(Deadline::never().poll_timeout_ms() == -1);
  CHECK_FALSE(Deadline::never().passed());
  const TimePoint now = Clock::now();
  CHECK(Deadline::at(now + std::chrono::microseconds(1500)).poll_timeout_ms(1000, now) == 2);
  CHECK(Deadline::at(now).passed(now));
}

TEST_CASE("fault point: acts at the k-th passing and only there") {
  fault::arm("*:2:throw");
  CHECK_NOTHROW(fault_point("*"));
  CHECK_THROWS_AS(fault_point("*"), Error);
  CHECK_NOTHROW(fault_point("*"));
  fault::arm(nullptr);
}
