// Links that take no more for a while, as those of slow lines do.
#include <sys/socket.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/deadline.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"

using namespace hvd;

namespace {

Operation sum_of(std::vector<float>& data) {
  return {.kind = OperationKind::kAllreduce,
          .result = {data.data(), data.size(), DataType::kFloat32},
          .reduction = {.op = ReduceOp::kSum},
          .name = "tensor"};
}

void advance_all(Communicator& one, Communicator& other) {
  for (bool moved = true; moved;) {
    moved = one.progress();
    moved |= other.progress();
  }
}

// As the engine does once it hears that the epoch is broken.
void leave(Communicator& communicator) {
  communicator.close();
  const Deadline deadline = Deadline::in(std::chrono::seconds(20));
  while (!communicator.drained()) {
    REQUIRE_FALSE(deadline.passed());
    communicator.progress();
  }
  communicator.fail_rest();
}

// From now on the kernel holds little of what this process sends.
void shrink_sockets() {
  const int bytes = 4096;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    setsockopt(std::stoi(entry.path().filename()), SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

// Two ranks whose links are there. The second has sent all of its tensor, and the first may send
// only a little of its own at a time.
struct Slow {
  explicit Slow(size_t count) : data_zero(count, 1), data_one(count, 2) {
    advance_all(zero, one);
    Operation barrier_zero, barrier_one;
    zero.start(barrier_zero);
    one.start(barrier_one);
    advance_all(zero, one);
    REQUIRE(barrier_one.outcome == Outcome::kComplete);
    REQUIRE(barrier_zero.outcome == Outcome::kComplete);
    one.start(theirs);
    while (one.progress()) continue;
    shrink_sockets();
    zero.start(ours);
  }

  RankThreads ranks{std::vector{1, 1}, tcp_factory()};
  Communicator& zero = *ranks.rank(0).communicator;
  Communicator& one = *ranks.rank(1).communicator;
  std::vector<float> data_zero, data_one;
  Operation ours = sum_of(data_zero), theirs = sum_of(data_one);
};

}  // namespace

TEST_CASE("tcp: all is summed, whatever waits to be sent") {
  Slow slow(32'000);
  for (int turn = 0; turn < 1'000'000 && slow.ours.outcome == Outcome::kPending; ++turn) {
    slow.zero.progress();
    if (turn % 16 == 0) slow.one.progress();
  }
  advance_all(slow.zero, slow.one);
  CHECK(slow.ours.outcome == Outcome::kComplete);
  CHECK(slow.theirs.outcome == Outcome::kComplete);
  CHECK(slow.data_zero == std::vector<float>(32'000, 3));
  CHECK(slow.data_one == std::vector<float>(32'000, 3));
}

TEST_CASE("tcp: what cannot be sent any more keeps nobody from the end of an epoch") {
  Slow slow(16'000);  // less than is read at once: all of it is there
  int turns = 0;
  while (turns < 1'000'000 && slow.zero.progress()) ++turns;  // the other one takes nothing
  CHECK(turns < 1'000'000);
  slow.ranks.world().declare_dead(1);
  leave(slow.zero);
  leave(slow.one);
  // Whether all of it went is the kernel's business.
  const std::vector<float> sum(16'000, 3);
  CHECK((slow.ours.outcome != Outcome::kComplete || slow.data_zero == sum));
  CHECK((slow.theirs.outcome != Outcome::kComplete || slow.data_one == sum));
}
