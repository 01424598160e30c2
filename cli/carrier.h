// Starts an agent on a host and hands out its channels.
#pragma once

#include <sys/types.h>

#include "rendezvous/slots.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

struct AgentChannels {
  pid_t pid = 0;     // of our child: the keeper here, an ssh or srun there
  UniqueFd lease;    // the agent's stdin: frames go in, closing it ends the job on that host
  UniqueFd output;   // its stdout
  UniqueFd words;    // its stderr, and the carrier's
  UniqueFd control;  // a connected socket for the control stream
};

class Carrier {
 public:
  virtual ~Carrier() = default;
  // Call from a thread that lives as long as the process. Throws kUnavailable. From its first
  // instruction on the agent ignores INT, TERM, HUP, QUIT, USR1 and USR2: who signals every
  // process, as batch systems do, means the job, and hvdrun decides what becomes of it.
  virtual AgentChannels start_agent(const Host& host) = 0;
};

}  // namespace hvd
