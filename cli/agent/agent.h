// The agent: starts this host's workers, moves their bytes, reports their ends, and ends them.
//
// It ends the job by itself when its stdin closes (the lease) or when its keeper dies. Descriptors:
// 0 the lease and stdin frames, 1 output frames, 2 words, and by its number in the last word of the
// command line the control socket.
#pragma once

#include <memory>
#include <optional>

#include "cli/agent/keeper.h"
#include "cli/ship/shipped.h"
#include "rendezvous/credentials.h"

namespace hvd {

// `hvdrun agent` alone is one that a user asked for: run_agent() says what that is.
bool is_agent(int argc, char** argv);

// The agent of another host, below its keeper; its first words are said, `key` was in them;
// `shipped` is what its workers start from, if anything was shipped. Returns the exit code.
int run_agent(Kept kept, std::unique_ptr<AgentKey> key, std::optional<Shipped> shipped);

// Forks the keeper first: call it in a single-threaded process. Leaves by _exit.
[[noreturn]] void run_agent(int argc, char** argv);

}  // namespace hvd
