// Turns hvdrun's command line into what to do.
//
// Pure but for the environment, which comes in as a function. What needs this machine is left
// to host_choice.h (host files, its names, its GPUs) and environment_settings.h.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/job_spec.h"

namespace hvd {

enum class Request {
  kRun,
  kDryRun,  // check all and print the plan
  kShow,    // print `text` to stdout and end with 0
};

struct CommandLine {
  Request request = Request::kRun;
  std::string text;                            // what kShow prints
  std::vector<std::string> warnings;           // said once each, before anything starts
  std::optional<std::string> host_list;        // -H
  std::optional<std::string> host_file;        // --hostfile
  std::vector<Host> pretended_hosts;           // --pretend-hosts: instead of those
  std::vector<std::string> environment_files;  // --env-file, in the order given
  JobSpec spec;                                // without hosts; size 0 when -np was not given
};

// The value of a variable, or nothing when it is not set.
using ReadEnvironment = std::function<std::optional<std::string>(const char* name)>;

// `words` are those behind the program's name. The command line beats the environment, which beats
// the defaults. Throws kInvalidArgument or kUnsupported: one line that says what to do instead.
CommandLine parse_command_line(std::span<const std::string> words,
                               const ReadEnvironment& read_environment);

}  // namespace hvd
