// How long a rank's end stays unnoticed: from its SIGKILL until every other rank has been told.
//
//   death_benchmark RANKS ROUNDS [stopped]
//
// The ranks reduce without end below the agent's HostMemory, without hvdrun, which would end the
// survivors. Rank 0 is killed at a moment drawn by chance; `stopped`: the last rank has been
// stopped before, so the others are told when the agent has given it up. A line of milliseconds a
// round.
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>

#include "hvd/hvd.h"
#include "tests/support/host_job.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

constexpr size_t kElements = size_t{256} << 10;  // some 100 us a call: most moments are inside one
constexpr int kCallsBefore = 50;

enum Number { kCalls, kToldNs };  // of a rank's board

int64_t now_ns() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

int reduce_until_told() {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  RankBoard& board = rank_board();
  try {
    init();
    const ArenaBuffer<float> data = arena_buffer<float>(kElements);
    for (;; ++board.numbers[kCalls]) allreduce_(data, {.op = ReduceOp::kMax});
  } catch (const CommFailure&) {
    board.numbers[kToldNs] = now_ns();
    return 0;
  }
}

double one_round(int ranks, bool stopped, std::chrono::microseconds moment) {
  HostJob job({.ranks = ranks, .program = "reduce"});
  const auto under_way = [&] {
    for (int k = 0; k < ranks; ++k)
      if (job.board(k).numbers[kCalls] < kCallsBefore) return false;
    return true;
  };
  const auto fail = [&](const std::string& what) {
    throw std::runtime_error(what + ": " + job.describe());
  };
  if (!job.run_until(under_way, 20s)) fail("the ranks do not come to reducing");
  const Deadline until = Deadline::in(moment);
  job.run_until([&] { return until.passed(); });
  if (stopped) job.signal(ranks - 1, SIGSTOP);
  const int64_t killed_ns = now_ns();
  job.signal(0, SIGKILL);
  if (!job.run(20s)) fail("a survivor has not ended");
  int64_t told_ns = 0;
  for (int k = 1; k < ranks - (stopped ? 1 : 0); ++k) {
    if (job.rank(k).status != 0) fail("rank " + std::to_string(k) + " was not told");
    told_ns = std::max(told_ns, job.board(k).numbers[kToldNs].load());
  }
  if (stopped == job.rank(ranks - 1).given_up.empty()) fail("the last rank");
  return static_cast<double>(told_ns - killed_ns) / 1e6;
}

int measure(int ranks, int rounds, bool stopped) {
  std::mt19937 random(std::random_device{}());
  for (int round = 0; round < rounds; ++round) {
    const std::chrono::microseconds moment(random() % 5000);
    std::printf("%.3f\n", one_round(ranks, stopped, moment));
  }
  return 0;
}

}  // namespace
}  // namespace hvd

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "--rank-program") == 0) return hvd::reduce_until_told();
  const bool stopped = argc == 4 && std::strcmp(argv[3], "stopped") == 0;
  const int ranks = argc > 2 ? std::atoi(argv[1]) : 0, rounds = argc > 2 ? std::atoi(argv[2]) : 0;
  if (ranks < (stopped ? 3 : 2) || rounds < 1 || argc > (stopped ? 4 : 3)) {
    std::fputs("usage: death_benchmark RANKS ROUNDS [stopped]\n", stderr);
    return 2;
  }
  try {
    return hvd::measure(ranks, rounds, stopped);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "death_benchmark: %s\n", error.what());
    return 1;
  }
}
