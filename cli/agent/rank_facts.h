// What a rank was doing last, read from its status page, for the failure report.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/status_page.h"

namespace hvd {

// A consistent copy of a status page.
struct StatusSnapshot {
  Phase phase = Phase::kNone;
  uint32_t epoch = 0;
  Order order = Order::kProgram;
  uint64_t sequence = 0;
  uint64_t bytes = 0;
  uint64_t step = 0;
  int64_t since_ns = 0;
  bool told = false;  // that other ranks are gone or did not come
  std::string operation;
  bool torn = false;  // the rank died in the middle of writing: the parts may not belong together
};
StatusSnapshot read_status(const StatusPage& page);

struct RankFacts {
  bool claimed = false;          // a process spoke for it: the program uses libhvd
  pid_t pid = 0;                 // that process; 0 when not claimed
  uint32_t epoch = 0;            // the last one it was started in; 0: none
  bool left = false;             // it called shutdown(); a clean end
  bool dead = false;             // its death word is written
  std::string given_up;          // why the agent killed it, if it did not answer
  bool asked = false;            // it waits in init() for the next epoch
  bool stranded_others = false;  // it ended without shutdown() while others of its epoch were in,
                                 // or had not finished, their collectives
  // Its epoch broke since a rank waited too long, or for one that has left: what that one said, and
  // for which ranks it waited.
  std::string waited_in_vain;
  std::vector<int> waited_for;
  StatusSnapshot status;
  std::string doing;  // describe(status), frozen at the death
};

// "was in allreduce float32 [4] "x" #12, 16 bytes, for 2.1 s"; "never called hvd::init()". `now` of
// CLOCK_MONOTONIC. Pure.
std::string describe(const StatusSnapshot& status, TimePoint now);

}  // namespace hvd
