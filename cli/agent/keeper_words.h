// What a keeper says on standard error of its agent's end, and what hvdrun reads of it.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

namespace hvd {

// "keeper: the agent (pid 71) was killed by SIGKILL"; what was done about it may follow behind ";".
std::string agents_end(pid_t agent, const std::string& how);

// `how` of such a line; empty if `line` is none, or of another agent than `agent`: 0 stands for
// any.
std::string_view how_agent_ended(std::string_view line, pid_t agent);

}  // namespace hvd
