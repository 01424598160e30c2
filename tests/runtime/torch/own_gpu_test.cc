// The GPU of a local rank, among those that its process sees.
#include "runtime/torch/own_gpu.h"

#include "tests/support/catch.h"

using namespace hvd;

TEST_CASE("own GPU: that of the local rank, or the only one that is seen") {
  CHECK(own_gpu(8, 0) == 0);
  CHECK(own_gpu(8, 7) == 7);
  CHECK(own_gpu(1, 0) == 0);
  CHECK(own_gpu(1, 5) == 0);
  CHECK(own_gpu(2, 3, true) == 1);
}

TEST_CASE("own GPU: a rank beyond those that are seen is told so") {
  CHECK_THROWS_WITH(own_gpu(2, 2), Catch::Contains("local rank 2 has no GPU: it sees 2") &&
                                       Catch::Contains("start at most that many ranks"));
  try {
    own_gpu(4, 9);
    FAIL("it has one");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kUnavailable);
  }
}
