// A world of one is right for a program that was started alone, and a trap where hvdrun started it
// and its environment got lost: each rank would then train for itself.
#pragma once

#include <sys/types.h>

#include <string>

namespace hvd {

// hvdrun's agent among the parents of a process, told by its name; 0 when there is none, or /proc
// does not say. Any thread.
pid_t agent_above(pid_t pid);

// What to warn of when a process is a world of one; "" without an agent above it.
std::string lost_environment_warning(pid_t agent);

}  // namespace hvd
