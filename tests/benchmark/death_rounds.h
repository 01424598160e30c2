// Ranks of which one is killed, and how long the others wait until they are told: what the programs
// of the death benchmark share.
//
//   PROGRAM RANKS ROUNDS [stopped|asleep [WORK]]
//
// The ranks work below the agent's HostMemory, without hvdrun, which would end the survivors. Rank
// 0 is killed at a moment drawn by chance. `stopped`: the last rank has been stopped before, so the
// others are told when the agent has given it up. `asleep`: rank 0 has stayed away from the work,
// for so long that whoever misses it looks for lost doorbells once a second only. WORK is the first
// one's name if it is not said. A line of milliseconds a round.
#pragma once

#include <functional>
#include <span>

namespace hvd {

// A rank calls `prepare` after init(), and what that returns again and again.
struct DeathWork {
  const char* name;
  std::function<void()> (*prepare)();
  bool refused = false;  // the others' is another Error than CommFailure: they do not meet any more
};

int measure_deaths(int argc, char** argv, std::span<const DeathWork> works);  // main()

}  // namespace hvd
