// What an ssh is at that has not said a word yet, as far as the kernel knows.
#pragma once

#include <sys/types.h>

namespace hvd {

// It has not begun to connect: no TCP socket is open, and no proxy of its runs. False for another
// program, and where that cannot be looked at.
bool is_resolving(pid_t ssh);

}  // namespace hvd
