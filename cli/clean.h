// `hvdrun clean`: ends what earlier jobs left on hosts, and tells.
#pragma once

#include <span>
#include <string>

#include "cli/command_line.h"
#include "cli/start_state.h"

namespace hvd {

// `words` are those behind `clean`: the options that say which hosts and how they are reached,
// --dry-run and --all; without hosts it is this one. Returns the exit status: 0 when all hosts were
// looked at. Throws as parse_command_line() and find_hosts().
int run_clean(std::span<const std::string> words, const ReadEnvironment& read_environment,
              const StartState& start);

}  // namespace hvd
