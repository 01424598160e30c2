// Whether this process has stack enough.
#pragma once

namespace hvd {

// Throws kUnavailable where it may end by SIGSEGV for lack of a stack.
void check_stack();

}  // namespace hvd
