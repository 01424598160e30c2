// What hvdrun ends with.
#pragma once

#include "rendezvous/membership.h"

namespace hvd {

// By hvdrun's own doing; a rank's code passes unchanged, 128 + n for signal n.
inline constexpr int kExitUsage = 2;
inline constexpr int kExitLimit = 124;       // --timeout
inline constexpr int kExitOwnFailure = 125;  // an agent, a deadline, lost output or input
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

struct ExitStatus {
  int code = 0;
  int raise_signal =
      0;  // hvdrun ends by this signal instead, 0: it does not; `code` is then 128 + it
};

// What the cause alone decides; code 0 leaves it to the ranks.
ExitStatus exit_status_of(EndCause cause);

// Of a rank that could not be started, by the errno of the step that failed.
int exit_code_of_spawn(int error);

}  // namespace hvd
