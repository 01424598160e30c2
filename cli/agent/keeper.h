// The keeper: parent of an agent, alive for one purpose: whatever becomes of the agent and of
// hvdrun, nothing below it survives but what was there before it: what a start file of the login
// shell that became it had started.
//
// It waits for two things: the agent's end, and the hang-up of the lease (descriptor 0, which it
// never reads). After the latter the agent has kEndByItself to finish; then the keeper kills it and
// all that is left.
#pragma once

#include <sys/types.h>

#include <chrono>

#include "runtime/base/unique_fd.h"

namespace hvd {

// TERM, 500 ms, KILL is what an agent does when hvdrun is gone; the rest is for reaping.
inline constexpr std::chrono::milliseconds kEndByItself{1500};

struct Kept {
  UniqueFd keeper_lives;  // its reader is the keeper: an error on it is the keeper's end
  int keeper_pid = 0;
};

// An agent's exit code: it tried for long to end what is left, and has said who that is.
inline constexpr int kSomeAreStuck = 124;

// Forks once, single-threaded. Returns in the agent; the keeper's side never returns.
Kept become_kept(int argc, char** argv, int control_fd);

}  // namespace hvd
