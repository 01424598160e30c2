// Pipes, the flags of descriptors, and what to do when the kernel has none left.
#pragma once

#include <string>

#include "runtime/base/unique_fd.h"

namespace hvd {

struct Pipe {
  UniqueFd read, write;
};

// Both ends close-on-exec. Throws kUnavailable when no descriptor is left.
Pipe make_pipe();

// /dev/null, to read and to write, close-on-exec. Throws kUnavailable where there is none.
UniqueFd open_null();

// strerror() and, where a limit of the user's was met, which one to raise.
std::string error_text(int error);

// Only for descriptors that nobody else shares: the flag is the open file's, not the descriptor's.
void set_nonblocking(int fd);

}  // namespace hvd
