// Decides which hosts a job runs on and how many ranks it has.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/command_line.h"
#include "cli/hosts.h"
#include "cli/this_machine.h"

namespace hvd {

struct HostChoice {
  std::vector<Host> hosts;
  int size = 0;
  std::vector<std::string> notes;  // to be said once
};

// `size` is -np, or 0. All entries that are this machine become one host, their slots added. Pure.
// Throws kUnsupported for another machine, and kInvalidArgument when the size cannot be known;
// `command` is for the example in that message.
HostChoice choose_hosts(std::span<const GivenHost> given, int size, const ThisMachine& machine,
                        std::span<const std::string> command);

// Reads the host list or file of the command line, looks at this machine as far as needed, and
// fills in line.spec.hosts and line.spec.size; adds to line.warnings. Throws as above, and
// kInvalidArgument when the file cannot be read.
void find_hosts(CommandLine& line);

}  // namespace hvd
