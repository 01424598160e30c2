// Both sides of a watched training.
#include "tests/runtime/torch/watched_ranks.h"

#include <sched.h>
#include <unistd.h>

#include <stdexcept>

#include "hvd/hvd.h"
#include "runtime/base/env.h"

namespace hvd {

void meet(Stage stage) {
  RankBoard& board = rank_board();
  board.numbers[kStage] = stage;
  while (board.numbers[kGo] < stage) sched_yield();
}

WatchedRank::WatchedRank()
    : optimizer(*inner, net->named_parameters(),
                {.compression = env::get("HVD_TEST_FP16") ? Compression::kFp16 : Compression::kNone,
                 .bucket_bytes = static_cast<size_t>(
                     env::get_integer("HVD_TEST_BUCKET_BYTES").value_or(2 << 20))}) {}

void WatchedRank::backward(int step) {
  optimizer.zero_grad();
  net->loss(rank(), step).backward();
}

void WatchedRank::train(int from, int to) {
  for (int step = from; step < to; ++step) {
    backward(step);
    optimizer.step();
  }
}

void WatchedRank::tell_gradients() const {
  const auto parameters = net->parameters();
  for (size_t i = 0; i < parameters.size(); ++i)
    rank_board().numbers[kGradient + i] =
        reinterpret_cast<intptr_t>(parameters[i].grad().data_ptr());
}

SharedPiece WatchedRank::own_piece() const {
  return piece_at(getpid(), reinterpret_cast<uintptr_t>(net->parameters()[0].grad().data_ptr()))
      .value();
}

int run_watched(void (*body)()) {
  try {
    init();
    use_one_thread();
    body();
    shutdown();
    return 0;
  } catch (const std::exception& error) {
    rank_board().write(error.what());
    return 1;
  }
}

HostJobOptions watched_job(const std::string& program, int ranks,
                           std::vector<std::string> environment) {
  environment.push_back("OMP_NUM_THREADS=1");
  HostJobOptions options;
  options.ranks = ranks;
  options.program = program;
  options.environment = std::move(environment);
  return options;
}

// All ranks have come to the stage. False: one has ended, or the time is over.
bool await_stage(HostJob& job, int ranks, Stage stage, const std::function<void()>& meanwhile) {
  bool ended = false;
  const bool come = job.run_until([&] {
    meanwhile();
    int there = 0;
    for (int k = 0; k < ranks; ++k) {
      ended |= job.rank(k).status.has_value();
      there += job.board(k).numbers[kStage] >= stage;
    }
    return ended || there == ranks;
  });
  return come && !ended;
}

void release(HostJob& job, int ranks, Stage stage) {
  for (int k = 0; k < ranks; ++k) job.board(k).numbers[kGo] = stage;
}

std::vector<Gradients> gradients_of(HostJob& job, int ranks) {
  const auto net = nets::mlp()();
  std::vector<Gradients> places;
  for (int k = 0; k < ranks; ++k) {
    Gradients place;
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      const auto address = static_cast<uintptr_t>(job.board(k).numbers[kGradient + i].load());
      const auto piece = piece_at(job.rank(k).pid, address);
      if (!piece) throw std::runtime_error("a gradient lies in no shared memory");
      if (i > 0 && piece->inode != place.piece.inode)
        throw std::runtime_error("gradients lie in different segments");
      place.piece = *piece;
      place.offsets.push_back(address - piece->begin);
    }
    places.push_back(std::move(place));
  }
  return places;
}

}  // namespace hvd
