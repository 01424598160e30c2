// Which signal goes out when, once a job has to end.
//
// Pure. Every step sends its signal to those it is for, followed by CONT; the last step is KILL,
// for all.
#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <vector>

namespace hvd {

// Leftovers are below ranks that have ended. Among them may be the filter through which a rank's
// last lines come, `exec > >(gzip > log)`: it ends by itself, once it has read the end.
enum class StopFor { kAll, kRanks, kLeftovers };

struct StopStep {
  std::chrono::milliseconds after;  // from the beginning of the plan
  int signal;
  StopFor whom = StopFor::kAll;
};
using StopPlan = std::vector<StopStep>;

// TERM after a lost launcher; also what a finished job left running.
inline constexpr std::chrono::milliseconds kFenceGrace{500};
// What leftovers get to end by themselves before TERM, if --stop-grace is no shorter.
inline constexpr std::chrono::milliseconds kLeftoversWhile{500};

// `first_signal` after `delay`, KILL a `grace` later. KILL as the first one is KILL now.
inline StopPlan planned_end(int first_signal, std::chrono::milliseconds grace,
                            std::chrono::milliseconds delay = {}) {
  if (first_signal == SIGKILL) return {{delay, SIGKILL}};
  // A second, harder word half-way: shells start background children with INT ignored.
  if (first_signal == SIGINT)
    return {{delay, SIGINT}, {delay + grace / 2, SIGTERM}, {delay + grace, SIGKILL}};
  return {{delay, first_signal}, {delay + grace, SIGKILL}};
}

inline StopPlan fence() { return planned_end(SIGTERM, kFenceGrace); }

// A rank has failed: the others get TERM, what it left has its while before.
inline StopPlan failure_end(std::chrono::milliseconds grace, std::chrono::milliseconds delay) {
  return {{delay, SIGTERM, StopFor::kRanks},
          {delay + std::min(grace, kLeftoversWhile), SIGTERM, StopFor::kLeftovers},
          {delay + grace, SIGKILL}};
}

// All ranks are over, and nobody has asked for an end.
inline StopPlan leftovers_end(std::chrono::milliseconds grace) {
  const auto at = std::min(grace, kLeftoversWhile);
  return {{at, SIGTERM, StopFor::kLeftovers}, {at + kFenceGrace, SIGKILL}};
}

// All ranks are over, `passed` after the plan began: what is still to come before KILL comes now,
// but leftovers have their while.
inline void hurry(StopPlan& plan, std::chrono::milliseconds passed) {
  for (StopStep& step : plan) {
    if (step.signal == SIGKILL) continue;
    const bool has_while = step.whom == StopFor::kLeftovers;
    step.after = std::min(step.after, has_while ? passed + kLeftoversWhile : passed);
  }
}

}  // namespace hvd
