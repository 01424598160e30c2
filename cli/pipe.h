// Pipes, the flags of descriptors, what to do when the kernel has none left, and signs of life.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

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

// A blank line on standard error, which hvdrun shows nobody, each kSignOfLife from a host that
// waits for hvdrun's words. TCP learns only from what it sends that the other end is gone: without
// it, who has been cut off waits for hours, and a hvdrun that was stopped could not be told from
// one that is gone. None where standard output is the same file, as after a start file's
// `exec 2>&1`: it would be in the midst of frames.
inline constexpr std::chrono::milliseconds kSignOfLife{1000};
void give_sign_of_life();

}  // namespace hvd
