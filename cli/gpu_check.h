// Whether the GPUs that --devices names are on this machine, found out before anything starts.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/job_check.h"
#include "cli/job_spec.h"
#include "cli/start_state.h"
#include "rendezvous/slots.h"

namespace hvd {

// Of indices the driver's files decide, unless a GPU is divided; for names nvidia-smi is asked, and
// waited for 5 s at most: what it does not tell in time goes unchecked, which `notes` say. Without
// --devices, and where no rank is here, nothing is looked at. Call as spawn().
std::optional<Refusal> check_devices(const JobSpec& spec, std::span<const Slot> slots,
                                     const StartState& start, std::vector<std::string>& notes);

}  // namespace hvd
