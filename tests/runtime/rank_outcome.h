// How a rank program says what became of it, and what a test asks of it.
#pragma once

#include <functional>

#include "hvd/error.h"
#include "tests/support/catch.h"
#include "tests/support/host_job.h"
#include "tests/support/rank_program.h"

namespace hvd {

// What each number of a board means.
enum BoardNumber { kReached, kWrong, kOutcome, kLateWrites, kStep, kPhase, kAtRest, kMayEnd };
enum RankOutcome : int64_t { kNothing, kFinished, kFailed, kOtherError };
inline constexpr int kFailedStatus = 3;  // exit code of a rank that was told of a CommFailure

inline void expect(bool right) {
  if (!right) ++rank_board().numbers[kWrong];
}

inline int guarded(const std::function<void()>& body) {
  RankBoard& board = rank_board();
  try {
    body();
    board.numbers[kOutcome] = kFinished;
    return board.numbers[kWrong] == 0 ? 0 : 1;
  } catch (const CommFailure& failure) {
    board.numbers[kOutcome] = kFailed;
    board.write(failure.what());
    return kFailedStatus;
  } catch (const Error& error) {
    board.numbers[kOutcome] = kOtherError;
    board.write(error.what());
    return 4;
  }
}

inline void check_all_finish(HostJob& job, int ranks) {
  REQUIRE(job.run());
  INFO(job.describe());
  for (int i = 0; i < ranks; ++i) CHECK(job.rank(i).status == 0);
}

}  // namespace hvd
