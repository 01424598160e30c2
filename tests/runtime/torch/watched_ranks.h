// Ranks whose training steps a third process looks at: what they do, and how the test meets them.
//
// Ranks are processes below the agent's HostMemory. They come to stages, and go on when the test
// has seen enough; both say so on the boards.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/shared_memory/words.h"
#include "hvd/torch.h"
#include "tests/runtime/torch/training.h"
#include "tests/support/host_job.h"
#include "tests/support/shared_memory_view.h"

namespace hvd {

// What each number of a board means; the last one is the first of many, by parameter.
enum Number { kStage, kGo, kFault, kCopiedIn, kCopiedOut, kTensorCopies, kGradient };
enum Stage : int64_t { kStarting, kWarm, kBackwardDone, kStepped, kOver };

// Where the buckets begin in a piece of the list: its words and 512 bytes of control come first.
inline constexpr size_t kHomes = (sizeof(CommunicatorWords) + 512 + 4095) / 4096 * 4096;

// --- In the ranks.

// Comes to a stage, and goes on when the test lets it.
void meet(Stage stage);

// Trains a net. HVD_TEST_FP16 and HVD_TEST_BUCKET_BYTES are its options.
struct WatchedRank {
  std::shared_ptr<nets::Net> net = nets::mlp()();
  std::unique_ptr<torch::optim::Optimizer> inner = nets::sgd()(net->parameters());
  DistributedOptimizer optimizer;

  WatchedRank();
  void backward(int step);
  void train(int from, int to);
  void tell_gradients() const;    // their addresses
  SharedPiece own_piece() const;  // where its first gradient lies
};

// Between init() and shutdown(); what is thrown goes to the board.
int run_watched(void (*body)());

// --- In the test.

HostJobOptions watched_job(const std::string& program, int ranks,
                           std::vector<std::string> environment);
// All ranks have come to the stage. False: one has ended, or the time is over.
bool await_stage(
    HostJob& job, int ranks, Stage stage, const std::function<void()>& meanwhile = [] {});
void release(HostJob& job, int ranks, Stage stage);

// Where a rank's gradients lie in its piece of the bucket list.
struct Gradients {
  SharedPiece piece;
  std::vector<size_t> offsets;  // by parameter
};
// Throws when one lies in no shared memory: the kernel is asked.
std::vector<Gradients> gradients_of(HostJob& job, int ranks);

}  // namespace hvd
