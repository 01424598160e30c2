// Links that take no more for a while, as those of slow lines do.
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <filesystem>
#include <memory>
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

Operation broadcast_of(std::vector<float>& data) {
  return {.kind = OperationKind::kBroadcast,
          .result = {data.data(), data.size(), DataType::kFloat32},
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

// From now on the kernel holds little of what this process sends (SO_SNDBUF), or is sent.
void shrink_sockets(int option) {
  const int bytes = 4096;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    setsockopt(std::stoi(entry.path().filename()), SOL_SOCKET, option, &bytes, sizeof bytes);
}

void meet(Communicator& one, Communicator& other) {
  advance_all(one, other);
  Operation barriers[2];
  one.start(barriers[0]);
  other.start(barriers[1]);
  advance_all(one, other);
  for (const Operation& barrier : barriers) REQUIRE(barrier.outcome == Outcome::kComplete);
}

// Two ranks whose links are there.
struct Pair {
  Pair() { meet(zero, one); }

  RankThreads ranks{std::vector{1, 1}, tcp_factory()};
  Communicator& zero = *ranks.rank(0).communicator;
  Communicator& one = *ranks.rank(1).communicator;
};

// The second has sent all of its tensor, and the first may send
// only a little of its own at a time.
struct Slow : Pair {
  explicit Slow(size_t count) : data_zero(count, 1), data_one(count, 2) {
    one.start(theirs);
    while (one.progress()) continue;
    shrink_sockets(SO_SNDBUF);
    zero.start(ours);
  }

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

namespace {

// The first rank has sent `count` numbers, which the second has not read, and has left.
struct Left : Pair {
  explicit Left(size_t count) : data_zero(count, 1), data_one(count, 0) {
    for (const int option : {SO_SNDBUF, SO_RCVBUF}) shrink_sockets(option);
    one.start(theirs);
    while (one.progress()) continue;
    zero.start(ours);
    while (zero.progress()) continue;
    if (ours.outcome == Outcome::kComplete) zero.close();
  }
  bool is_full() const { return ours.outcome == Outcome::kComplete && !zero.drained(); }
  std::string why() {
    const ControlBlock& block = ranks.rank(1).peers->block();
    const bool elsewhere = (block.reason & 255) == static_cast<uint32_t>(TroubleReason::kElsewhere);
    return elsewhere ? block.elsewhere : ranks.rank(1).peers->block().rank(0).reason;
  }

  std::vector<float> data_zero, data_one;
  Operation ours = broadcast_of(data_zero), theirs = broadcast_of(data_one);
};

}  // namespace

TEST_CASE("tcp: who leaves behind what fills its link is named by who needs it") {
  int full = 0;
  for (size_t count = 100; count < 16'000 && full < 3; count += 25) {
    Left left(count);
    if (!left.is_full()) continue;
    ++full;
    Operation next;
    left.one.start(next);
    const Deadline deadline = Deadline::in(std::chrono::seconds(20));
    while (left.ranks.rank(1).peers->block().trouble == 0) {
      REQUIRE_FALSE(deadline.passed());
      if (!left.zero.idle()) left.zero.progress();
      left.one.progress();
    }
    CHECK(left.theirs.outcome == Outcome::kComplete);
    CHECK(left.data_one == left.data_zero);
    CHECK(left.why() == "rank 0 called shutdown() while other ranks went on");
    CHECK(left.zero.drained());
    leave(left.one);
  }
  CHECK(full > 0);
}

TEST_CASE("tcp: who leaves waits for no reader for ever") {
  size_t count = 100;
  std::unique_ptr<Left> left;
  do {
    left = std::make_unique<Left>(count += 25);
  } while (!left->is_full() && count < 16'000);
  REQUIRE(left->is_full());
  const Deadline deadline = Deadline::in(std::chrono::seconds(20));
  while (!left->zero.drained()) {
    REQUIRE_FALSE(deadline.passed());
    std::vector<pollfd> descriptors;
    const auto again = left->zero.watch(descriptors);
    REQUIRE(again <= std::chrono::seconds(1));
    poll(descriptors.data(), descriptors.size(), static_cast<int>(again.count()));
    left->zero.progress();
  }
  CHECK(left->zero.idle());
}
