// hvdrun's loop: starts the agent, moves input and output, feeds events to the Membership and
// performs its actions, and says at the end who failed.
//
// Everything runs on the calling thread; helper threads (control stream, sinks, stdin) only put
// things into queues.
#pragma once

#include <vector>

#include "cli/carrier.h"
#include "cli/exit_code.h"
#include "cli/job_spec.h"
#include "cli/ship/ship_offer.h"
#include "cli/start_state.h"
#include "rendezvous/slots.h"

namespace hvd {

// Runs the job to its end; `offer` is what other hosts need before, or null. The process must end
// by _exit or a signal after it: threads may be stuck in a write. Throws kInvalidArgument when an
// output file cannot be made, kUnavailable when the agent cannot be started.
ExitStatus supervise(const JobSpec& spec, const std::vector<Slot>& slots, const StartState& start,
                     Carrier& carrier, const ShipOffer* offer);

}  // namespace hvd
