// Communicators that are split from one over the stand-ins, each rank's moved by its own thread.
#include <array>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "collectives/nccl/nccl_communicator.h"
#include "tests/collectives/nccl/engine_devices.h"
#include "tests/collectives/nccl/standin.h"
#include "tests/support/catch.h"
#include "tests/support/ranks.h"
#include "tests/support/until.h"

namespace hvd {
namespace {

// Says how many there are; what else a split one needs of it no test here asks for.
class Members final : public Communicator {
 public:
  Members(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void start(Operation&) override { throw Error(ErrorCode::kInternal, "over CPUs"); }
  bool progress() override { return false; }
  bool idle() const override { return true; }
  void close() override {}
  bool drained() const override { return true; }
  void fail_rest() override {}
  void abort() noexcept override {}
  std::vector<int> missing_ranks() const override { return {}; }
  uint64_t entered() const override { return 0; }

 private:
  const int rank_, size_;
};

// A rank's communicator, and what it has started.
class Family {
 public:
  explicit Family(Rank& rank)
      : number_(rank.rank),
        block_(rank.peers->block()),
        stream_(rank.rank),
        memory_(standin_backend(rank.rank).allocate(4 * kCount)),
        first_(*rank.peers, standin_device(rank.rank), standin_nccl(), "a test's",
               *rank.communicator) {}

  NcclCommunicator& first() { return first_; }
  // A sum of this rank's number and `more` over all of them.
  float sum(NcclCommunicator& communicator, float more = 0) {
    stream_.write(memory_.get(), std::vector<float>(kCount, static_cast<float>(number_) + more));
    stream_.drain();
    Operation operation;
    operation.kind = OperationKind::kAllreduce;
    operation.result = {memory_.get(), kCount, DataType::kFloat32};
    operation.reduction.op = ReduceOp::kSum;
    operation.on_device = true;
    communicator.start(operation);
    wait_for(communicator, operation);
    const std::vector<float> all = stream_.read(memory_.get(), kCount);
    return count_wrong(all, all[0]) == 0 ? all[0] : -1;
  }
  void start_split(Operation& operation, int color, int key) {
    operation.kind = OperationKind::kSplit;
    operation.color = color;
    operation.key = key;
    operation.on_device = true;
    first_.start(operation);
  }
  void split(Operation& operation, int color, int key) {
    start_split(operation, color, key);
    wait_for(first_, operation);
  }
  void wait_until_broken() {
    until("the epoch breaks", [&] {
      first_.progress();
      return block_.trouble.load() != 0;
    });
  }
  void leave() {
    first_.close();
    until("the end", [&] {
      first_.progress();
      return first_.drained();
    });
  }

 private:
  static constexpr size_t kCount = 1000;

  void wait_for(NcclCommunicator& communicator, const Operation& operation) {
    until("an outcome", [&] {
      first_.progress();
      communicator.progress();
      return operation.outcome.load(std::memory_order_acquire) != Outcome::kPending;
    });
    if (operation.outcome != Outcome::kComplete) throw std::runtime_error(operation.error);
  }

  const int number_;
  ControlBlock& block_;
  ProgramStream stream_;
  const std::shared_ptr<std::byte> memory_;
  NcclCommunicator first_;
};

}  // namespace

TEST_CASE("nccl split: ranks of one color sum among themselves, in the order of their keys") {
  std::array<float, 4> before{}, among{}, after{};
  RankThreads(4).run([&](Rank& rank) {
    const auto at = static_cast<size_t>(rank.rank);
    Family scene(rank);
    before[at] = scene.sum(scene.first());
    Operation split;
    scene.split(split, rank.rank == 3 ? -1 : rank.rank % 2, -rank.rank);
    std::array<Members, 4> members = {Members{1, 2}, {0, 1}, {0, 2}, {0, 1}};
    std::unique_ptr<NcclCommunicator> child;
    if (rank.rank != 3) child = scene.first().take_split(split, members[at]);
    if (child) among[at] = scene.sum(*child, 10);
    after[at] = scene.sum(scene.first(), 1);
    if (child) child->close();
    scene.leave();
  });
  CHECK(before == std::array<float, 4>{6, 6, 6, 6});
  CHECK(among == std::array<float, 4>{22, 11, 22, 0});
  CHECK(after == std::array<float, 4>{10, 10, 10, 10});
}

TEST_CASE("nccl split: in a broken epoch the whole family is aborted") {
  const long long aborts = hvd_standin_count("aborts", -1);
  std::atomic<int> summed{0}, wrong{0};
  RankThreads(2).run([&](Rank& rank) {
    Family scene(rank);
    Operation split;
    scene.split(split, 0, rank.rank);
    Members control(rank.rank, 2);
    const auto child = scene.first().take_split(split, control);
    wrong += scene.sum(*child) != 1;
    ++summed;
    until("both have summed", [&] { return summed == 2; });
    if (rank.rank == 0) scene.first().abort();
    scene.wait_until_broken();
    child->close();
    scene.leave();
  });
  CHECK(wrong == 0);
  CHECK(hvd_standin_count("aborts", -1) == aborts + 4);
}

TEST_CASE("nccl split: where it fails the epoch breaks, in NCCL's words") {
  const Setting fails("fail_call", "ncclCommSplit:1:3"), of_rank("fault_rank", "1");
  std::atomic<int> failed{0}, named{0};
  RankThreads(2).run([&](Rank& rank) {
    Family scene(rank);
    Operation split;
    scene.start_split(split, 0, rank.rank);
    scene.wait_until_broken();
    scene.leave();
    scene.first().fail_rest();
    failed += split.outcome == Outcome::kFailedUndefined;
    named += std::string(rank.peers->block().rank(1).reason).find("NCCL failed in split") !=
             std::string::npos;
  });
  CHECK(failed == 2);
  CHECK(named == 2);
}

}  // namespace hvd
