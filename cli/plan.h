// What --dry-run prints: which rank would start where, and how.
#pragma once

#include <span>
#include <string>

#include "cli/job_spec.h"
#include "rendezvous/slots.h"

namespace hvd {

// `variables`: names of what a rank gets beside hvdrun's own environment. Values are not shown:
// they may be secrets.
std::string plan_text(const JobSpec& spec, std::span<const Slot> slots,
                      std::span<const std::string> variables);

}  // namespace hvd
