// A rank dies, or is stopped and given up on, at any step of a training step(): it completes on
// every survivor or is a CommFailure on every survivor, and nobody's memory is written afterwards.
//
// Ranks are processes below the agent's HostMemory; nobody ends the survivors.
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "hvd/hvd.h"
#include "hvd/torch.h"
#include "runtime/base/env.h"
#include "runtime/base/fault_point.h"
#include "tests/runtime/torch/training.h"
#include "tests/support/extent.h"
#include "tests/support/host_job.h"
#include "tests/support/rank_program.h"
#include "tests/support/temporary_directory.h"

using namespace std::chrono_literals;

namespace hvd {
namespace {

constexpr int kSteps = 3;
constexpr int kPattern = 0x5a;

// What each number of a board means.
enum Number { kApplied, kParameters, kFailed, kOther, kJudged, kMayEnd, kLate };

// FNV-1a over the bits of all parameters.
int64_t bits_of(const nets::Net& net) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const at::Tensor& p : net.parameters()) {
    const auto* bytes = static_cast<const unsigned char*>(p.data_ptr());
    for (size_t i = 0; i < p.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  }
  return static_cast<int64_t>(hash);
}

// Gradients in the arena, both homes as far as this rank sees them, and parameters.
std::vector<at::Tensor> memory_of(const nets::Net& net) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& p : net.parameters()) {
    all.push_back(p);
    if (p.grad().defined()) all.push_back(p.grad());
  }
  return all;
}

int64_t late_writes(const std::vector<at::Tensor>& memory) {
  int64_t late = 0;
  for (const at::Tensor& one : memory) {
    const auto* bytes = static_cast<const unsigned char*>(one.data_ptr());
    late += std::count_if(bytes, bytes + one.nbytes(), [](int byte) { return byte != kPattern; });
  }
  return late;
}

// Steps under a fault point that counts from the first one on.
void train(nets::Net& net) {
  const auto inner = nets::sgd()(net.parameters());
  DistributedOptimizer optimizer(*inner, net.named_parameters(), {.bucket_bytes = 16 << 10});
  const std::string fault = env::get("HVD_TEST_FAULT").value_or("");
  if (!fault.empty()) fault::arm(fault.c_str());
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    net.loss(rank(), step).backward();
    optimizer.step();
    ++rank_board().numbers[kApplied];
    rank_board().numbers[kParameters] = bits_of(net);
  }
  fault::arm(nullptr);
}

const RankProgram training("training", [] {
  RankBoard& board = rank_board();
  use_one_thread();
  const auto net = nets::mlp()();
  board.numbers[kParameters] = bits_of(*net);
  try {
    init();
    train(*net);
    shutdown();
  } catch (const CommFailure& failure) {
    board.numbers[kFailed] = 1;
    board.write(failure.what());
  } catch (const std::exception& error) {
    board.numbers[kOther] = 1;
    board.write(error.what());
  }
  const bool untouched = bits_of(*net) == board.numbers[kParameters];
  const std::vector<at::Tensor> memory = memory_of(*net);
  for (const at::Tensor& one : memory) std::memset(one.data_ptr(), kPattern, one.nbytes());
  board.numbers[kJudged] = 1;
  while (board.numbers[kMayEnd] == 0) sched_yield();
  board.numbers[kLate] = late_writes(memory) + !untouched;
  return 0;
});

struct Tally {
  int killed = 0, failed = 0, completed = 0;
};

HostJobOptions job_of(int ranks, int victim, const std::string& fault) {
  HostJobOptions options;
  options.ranks = ranks;
  options.program = "training";
  options.environment = {"OMP_NUM_THREADS=1"};
  options.rank_environment[victim] = {"HVD_TEST_FAULT=" + fault};
  return options;
}

// Survivors hold still with their memory filled until the last one has come as far. Whoever is not
// the victim has to be one.
void judge(HostJob& job, int ranks, int victim, Tally& tally) {
  const auto come_so_far = [&] {
    for (int k = 0; k < ranks; ++k)
      if (!job.rank(k).status && job.board(k).numbers[kJudged] == 0) return false;
    return true;
  };
  const bool in_time = job.run_until(come_so_far);
  for (int k = 0; k < ranks; ++k) job.board(k).numbers[kMayEnd] = 1;
  const bool ended = job.run();
  INFO(job.describe());
  REQUIRE(in_time);
  REQUIRE(ended);
  const RankBoard* first = nullptr;
  for (int k = 0; k < ranks; ++k) {
    if (k == victim && job.rank(k).status == 128 + SIGKILL) {
      ++tally.killed;
      continue;
    }
    REQUIRE(job.rank(k).status == 0);
    const RankBoard& board = job.board(k);
    if (first == nullptr) first = &board;
    REQUIRE(board.numbers[kOther] == 0);
    REQUIRE(board.numbers[kLate] == 0);
    // The same steps were applied, to the same bits, and the same thing came of the last one.
    REQUIRE(board.numbers[kApplied] == first->numbers[kApplied]);
    REQUIRE(board.numbers[kParameters] == first->numbers[kParameters]);
    REQUIRE(board.numbers[kFailed] == first->numbers[kFailed]);
    (board.numbers[kFailed] != 0 ? tally.failed : tally.completed) += 1;
  }
}

// Fault points that one rank passes in the steps.
long count_points(int ranks, int victim) {
  const TemporaryDirectory directory;
  const std::string file = directory.path() / "counts";
  HostJob job(job_of(ranks, victim, "count:" + file));
  Tally tally;
  judge(job, ranks, victim, tally);
  REQUIRE(tally.completed == ranks);
  return count_fault_points(file);
}

}  // namespace

TEST_CASE("step death: killed at the k-th point of a step, survivors agree and keep their memory") {
  Tally tally;
  for (const int ranks : {2, 3}) {
    for (int victim = thorough() ? 0 : ranks - 1; victim < ranks; ++victim) {
      const long points = count_points(ranks, victim);
      REQUIRE(points > 20 * kSteps);
      // In the short run the points of different steps, at different places.
      const long stride = thorough() ? 1 : points / 12;
      for (long k = 1; k <= points; k += stride) {
        CAPTURE(ranks, victim, k);
        HostJob job(job_of(ranks, victim, "*:" + std::to_string(k) + ":kill"));
        judge(job, ranks, victim, tally);
      }
    }
  }
  WARN(tally.killed << " killed, " << tally.failed << " survivors failed, " << tally.completed
                    << " completed");
  CHECK(tally.killed >= 20);
  CHECK(tally.failed >= 20);
}

TEST_CASE("step death: stopped in a step and given up on, it writes nothing later") {
  // Not in the last step: without a need for it the others would not notice.
  const long points = count_points(3, 1) * (kSteps - 1) / kSteps;
  const long stride = thorough() ? 3 : points / 3;
  for (long k = 2; k <= points; k += stride) {
    CAPTURE(k);
    HostJobOptions options = job_of(3, 1, "*:" + std::to_string(k) + ":stop");
    options.environment.push_back("HVD_COLLECTIVE_TIMEOUT=1");
    HostJob job(std::move(options));
    Tally tally;
    judge(job, 3, 1, tally);
    CHECK(tally.killed == 1);
    CHECK(tally.failed == 2);
  }
}

}  // namespace hvd
