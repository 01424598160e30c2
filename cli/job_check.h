// Looks, before anything starts, whether a job could start at all.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "cli/command_check.h"
#include "cli/job_spec.h"
#include "rendezvous/slots.h"

namespace hvd {

// Looks at which ranks' output is wanted, what a container may lack, the working directory and the
// command where ranks are to be on this machine, and at where output and result are to be written.
// `slots`: which host has which ranks. `environment`: what ranks anywhere find in theirs,
// "NAME=value". Mistakes of the command line, exit code 2, come first. Changes nothing.
std::optional<Refusal> check_job(const JobSpec& spec, std::span<const Slot> slots,
                                 std::span<const std::string> environment);

// The part of it that stands on how many ranks there are, for a job that did not know that before
// (JobSpec::size_open). Pure.
std::optional<Refusal> check_ranks(const JobSpec& spec, std::span<const Slot> slots,
                                   std::span<const std::string> environment);

}  // namespace hvd
