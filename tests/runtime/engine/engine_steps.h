// A program for deaths at any step, "engine_steps": ranks that use every kind of operation in every
// order, four at most; and how a test judges what became of the survivors.
//
// HVD_TEST_TIMEOUT_MS in a rank's environment: of every wait.
#pragma once

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/host_job.h"

namespace hvd {

inline constexpr int kEngineSteps = 6;
inline constexpr int kCompletedEachStep = 6;  // beside the optimizer's

// What each number of a board means.
struct StepsBoard {
  enum Number { kCompleted, kWrong, kJudged, kLate, kMayEnd, kStepsApplied, kInStore };
};

struct Survivor {
  int rank = 0;
  int64_t completed = 0, steps = 0;
  std::string error;      // that it was told; empty: none
  bool in_store = false;  // which says what was looked for, not who has died
};

struct StepsJudgement {
  bool in_time = false;
  std::vector<Survivor> survivors;
  int64_t wrong = 0, late = 0;  // results; writes into memory of who was told
  int64_t crashed = 0;          // but for the victims
  int64_t unknown = 0;          // of which the agent does not know whether they were told

  int64_t failed() const {
    return std::ranges::count_if(survivors, [](const Survivor& one) { return !one.error.empty(); });
  }
  // Between the first survivor and the last one.
  int64_t apart(int64_t Survivor::* number) const {
    if (survivors.empty()) return 0;
    const auto [least, most] = std::ranges::minmax_element(survivors, {}, number);
    return *most.*number - *least.*number;
  }
};

// Lets the job go on until every rank is judged or dead: whoever is no victim has to survive. The
// rank `stopped` may have stopped where nobody needs it any more: then it goes on when the others
// ended. Job: HostJob, or HostsJob.
template <class Job>
StepsJudgement judge_steps(Job& job, int ranks, const std::vector<int>& victims, int stopped = -1) {
  using Board = StepsBoard;
  constexpr std::chrono::seconds kLimit{60};
  StepsJudgement result;
  const auto others = [&](auto ready) {
    for (int k = 0; k < ranks; ++k)
      if (k != stopped && !ready(k)) return false;
    return true;
  };
  const auto has_ended = [&](int k) { return job.rank(k).status.has_value(); };
  const auto is_judged = [&](int k) {
    return has_ended(k) || job.board(k).numbers[Board::kJudged] != 0;
  };
  result.in_time = job.run_until([&] { return others(is_judged); }, kLimit);
  for (int k = 0; k < ranks; ++k) job.board(k).numbers[Board::kMayEnd] = 1;
  result.in_time &= job.run_until([&] { return others(has_ended); }, kLimit);
  if (stopped >= 0 && !has_ended(stopped)) job.signal(stopped, SIGCONT);
  result.in_time &= job.run(kLimit);
  for (int k = 0; k < ranks; ++k) {
    if (job.rank(k).status != 0) {
      const bool victim = std::ranges::find(victims, k) != victims.end();
      result.crashed += !victim || job.rank(k).status != 128 + SIGKILL;
      continue;
    }
    const RankBoard& board = job.board(k);
    const bool in_store = board.numbers[Board::kInStore] != 0;
    result.survivors.push_back({k, board.numbers[Board::kCompleted],
                                board.numbers[Board::kStepsApplied], board.text, in_store});
    result.wrong += board.numbers[Board::kWrong];
    result.late += board.numbers[Board::kLate];
    // The Store is not the program's.
    if (!in_store) result.unknown += job.facts(k).status.told != (board.text[0] != 0);
  }
  return result;
}

// At its k-th fault point, of any name.
inline std::vector<std::string> at_step(long k, const char* action) {
  return {"HVD_FAULT_POINT=*:" + std::to_string(k) + ":" + action};
}

// Does it happen at that step? One run has fewer steps than another, above all than one that was
// counted on a busy machine: then at half as many, until it does; false: not even at the `least`.
template <class Happens>
bool happens_by(long step, long least, Happens&& happens) {
  while (!happens(step)) {
    if (step <= least) return false;
    step = std::max(least, step / 2);
  }
  return true;
}

}  // namespace hvd
