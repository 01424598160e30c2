// Pipes and the flags of descriptors.
#pragma once

#include "runtime/base/unique_fd.h"

namespace hvd {

struct Pipe {
  UniqueFd read, write;
};

// Both ends close-on-exec. Throws kUnavailable when no descriptor is left.
Pipe make_pipe();

// Only for descriptors that nobody else shares: the flag is the open file's, not the descriptor's.
void set_nonblocking(int fd);

}  // namespace hvd
