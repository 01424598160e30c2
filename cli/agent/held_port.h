// A TCP port that is kept for rank 0's own use: MASTER_PORT.
#pragma once

#include "rendezvous/listener.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

// Bound without SO_REUSEADDR, which is set afterwards, and never listening: no other program, nor
// another job's agent, gets it by chance; a store that binds it with that option can still listen.
struct HeldPort {
  UniqueFd socket;
  int port = 0;   // 0: none could be had, and:
  int error = 0;  // why not the last that was tried
};

// One of the range, from its end; listeners take theirs from its beginning.
HeldPort hold_port(PortRange ports = {});

}  // namespace hvd
