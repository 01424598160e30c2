// Looks, before anything starts, whether a job could start at all.
#pragma once

#include <optional>
#include <string>

#include "cli/job_spec.h"

namespace hvd {

// Why hvdrun ends without having started anything.
struct Refusal {
  int exit_code;        // 2: usage, 125: the machine, 126 and 127: the command
  std::string message;  // one line
};

// Looks at which ranks' output is wanted, what a container may lack, the working directory, the
// command (in `path`, a PATH, unless -x sets another), and at where output and result are to be
// written. Changes nothing. `spec.size` must be known.
std::optional<Refusal> check_job(const JobSpec& spec, const std::string& path);

}  // namespace hvd
