// `hvdrun devices`: this machine's GPUs, and which rank of a job would use which.
#pragma once

#include <span>
#include <string>

#include "cli/command_line.h"
#include "cli/start_state.h"

namespace hvd {

inline constexpr int kExitNoGpu = 1;

// `words` are those behind `devices`: the options that say how many ranks there are and where.
// Returns the exit status: 0, or kExitNoGpu when CUDA programs started here would find no GPU.
// Throws as parse_command_line() and find_hosts(), and kUnavailable when nvidia-smi does not tell.
int run_devices(std::span<const std::string> words, const ReadEnvironment& read_environment,
                const StartState& start);

}  // namespace hvd
