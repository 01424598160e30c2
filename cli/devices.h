// `hvdrun devices`: the GPUs of hosts, and which rank of a job would use which.
#pragma once

#include <span>
#include <string>

#include "cli/command_line.h"
#include "cli/start_state.h"

namespace hvd {

inline constexpr int kExitNoGpu = 1;

// `words` are those behind `devices`: the options that say how many ranks there are, where, and how
// hosts are reached; without hosts it is this one. Returns the exit status, of several hosts the
// highest: 0, kExitNoGpu when CUDA programs would find no GPU, kExitOwnFailure when that is not
// known. Throws as parse_command_line() and find_hosts().
int run_devices(std::span<const std::string> words, const ReadEnvironment& read_environment,
                const StartState& start);

}  // namespace hvd
