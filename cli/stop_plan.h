// Which signal goes out when, once a job has to end.
//
// Pure. Every step sends its signal to all descendants, followed by CONT; the last step is KILL.
#pragma once

#include <chrono>
#include <csignal>
#include <vector>

namespace hvd {

struct StopStep {
  std::chrono::milliseconds after;  // from the beginning of the plan
  int signal;
};
using StopPlan = std::vector<StopStep>;

// TERM after a lost launcher; also what a finished job left running.
inline constexpr std::chrono::milliseconds kFenceGrace{500};

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

}  // namespace hvd
