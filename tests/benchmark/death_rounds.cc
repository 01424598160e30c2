#include "tests/benchmark/death_rounds.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>

#include "hvd/hvd.h"
#include "runtime/base/env.h"
#include "tests/support/host_job.h"

namespace hvd {
namespace {

using namespace std::chrono_literals;

constexpr int kCallsBefore = 50;
// Within 5 ms an awake rank is everywhere in its work; a sleeping one looks around every second
// when it has waited for one.
constexpr auto kAwakeWithin = 5ms, kAsleepBefore = 1200ms, kAsleepWithin = 1000ms;

enum Number { kCalls, kToldNs };  // of a rank's board
enum class Others { kRun, kOneIsStopped, kSleep };

int64_t now_ns() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

int work_until_told(const DeathWork& chosen) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  RankBoard& board = rank_board();
  const bool stays_away = env::get("HVD_TEST_STAYS_AWAY").has_value();
  try {
    init();
    const std::function<void()> work = chosen.prepare();
    for (;; ++board.numbers[kCalls]) {
      while (stays_away && board.numbers[kCalls] == kCallsBefore) pause();
      work();
    }
  } catch (const Error& error) {
    board.numbers[kToldNs] = now_ns();
    const bool failure = dynamic_cast<const CommFailure*>(&error) != nullptr;
    return failure || chosen.refused ? 0 : 1;
  }
}

HostJobOptions job_of(int ranks, Others others, const DeathWork& work) {
  HostJobOptions options;
  options.ranks = ranks;
  options.program = work.name;
  options.whole = true;
  options.environment = {"OMP_NUM_THREADS=1"};
  if (others == Others::kSleep) options.rank_environment[0] = {"HVD_TEST_STAYS_AWAY=1"};
  return options;
}

double one_round(int ranks, Others others, const DeathWork& work,
                 std::chrono::microseconds moment) {
  HostJob job(job_of(ranks, others, work));
  const auto under_way = [&] {
    for (int k = 0; k < ranks; ++k)
      if (job.board(k).numbers[kCalls] < kCallsBefore) return false;
    return true;
  };
  const auto fail = [&](const std::string& what) {
    throw std::runtime_error(what + ": " + job.describe());
  };
  if (!job.run_until(under_way, 20s)) fail("the ranks do not come to their work");
  const Deadline until = Deadline::in(moment);
  job.run_until([&] { return until.passed(); });
  const bool stopped = others == Others::kOneIsStopped;
  if (stopped) job.signal(ranks - 1, SIGSTOP);
  const int64_t killed_ns = now_ns();
  job.signal(0, SIGKILL);
  if (!job.run(20s)) fail("a survivor has not ended");
  int64_t told_ns = 0;
  for (int k = 1; k < ranks - (stopped ? 1 : 0); ++k) {
    if (job.rank(k).status != 0) fail("rank " + std::to_string(k) + " was not told");
    if (others == Others::kSleep && job.board(k).numbers[kCalls] != kCallsBefore)
      fail("rank " + std::to_string(k) + " did not wait for rank 0");
    told_ns = std::max(told_ns, job.board(k).numbers[kToldNs].load());
  }
  if (stopped == job.rank(ranks - 1).given_up.empty()) fail("the last rank");
  return static_cast<double>(told_ns - killed_ns) / 1e6;
}

void measure(int ranks, int rounds, Others others, const DeathWork& work) {
  std::mt19937 random(std::random_device{}());
  const std::chrono::microseconds before = others == Others::kSleep ? kAsleepBefore : 0ms;
  const std::chrono::microseconds within = others == Others::kSleep ? kAsleepWithin : kAwakeWithin;
  for (int round = 0; round < rounds; ++round)
    std::printf("%.3f\n", one_round(ranks, others, work, before + random() % within.count() * 1us));
}

}  // namespace

int measure_deaths(int argc, char** argv, std::span<const DeathWork> works) {
  const auto find = [&](const char* name) {
    return std::ranges::find_if(works, [&](auto& one) { return std::strcmp(one.name, name) == 0; });
  };
  if (argc == 3 && std::strcmp(argv[1], "--rank-program") == 0)
    return work_until_told(*find(argv[2]));
  const std::string word = argc > 3 ? argv[3] : "";
  const Others others = word == "stopped"  ? Others::kOneIsStopped
                        : word == "asleep" ? Others::kSleep
                                           : Others::kRun;
  const auto work = argc > 4 ? find(argv[4]) : works.begin();
  const int ranks = argc > 2 ? std::atoi(argv[1]) : 0, rounds = argc > 2 ? std::atoi(argv[2]) : 0;
  if (ranks < (others == Others::kOneIsStopped ? 3 : 2) || rounds < 1 || work == works.end() ||
      argc > (others == Others::kRun ? 3 : 5)) {
    std::fprintf(stderr, "usage: %s RANKS ROUNDS [stopped|asleep [WORK]]\n", argv[0]);
    return 2;
  }
  try {
    measure(ranks, rounds, others, *work);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
}

}  // namespace hvd
