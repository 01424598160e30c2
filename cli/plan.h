// What --dry-run prints: which rank would start where, and how.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/job_spec.h"
#include "rendezvous/slots.h"

namespace hvd {

// Names of the variables among `after` that are not in `before` with the same value, sorted; both
// hold "NAME=value" entries.
std::vector<std::string> changed_names(std::span<const std::string> before,
                                       std::span<const std::string> after);

// `variables`: names of what a rank gets beside hvdrun's own environment. Values are not shown but
// of those that an option about GPUs sets: they may be secrets.
std::string plan_text(const JobSpec& spec, std::span<const Slot> slots,
                      std::span<const std::string> variables);

}  // namespace hvd
