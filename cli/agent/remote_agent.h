// The program on another host, before it is the agent there: puts its own file in place, and says
// hello.
//
//   hvdrun agent --install SHA256 PATH   the file it runs from becomes PATH, if that is its sum
//   hvdrun agent --remote [--ship] [--once]
//                                        the agent; `--ship`: takes what --ship names first;
//                                        `--once`: from a file that it removes, with the folder of
//                                        its own which that is in
//   hvdrun agent --clean […] [--once]    `hvdrun clean` there (clean_host.h); speaks once, and ends
//   hvdrun agent --devices MS [--once]   `hvdrun devices` (gpu_facts.h), which waits for nvidia-smi
//                                        for no longer than that; speaks once, and ends
//
// Descriptors as for an agent: 0 the lease, 1 frames, 2 words. It speaks first, before it reads.
#pragma once

#include "cli/start_state.h"

namespace hvd {

bool is_remote_agent(int argc, char** argv);

// Call it in a single-threaded process. Leaves by _exit.
[[noreturn]] void run_remote_agent(int argc, char** argv, const StartState& start);

}  // namespace hvd
