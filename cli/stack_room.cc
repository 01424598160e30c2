#include "cli/stack_room.h"

#include <sys/resource.h>

#include <string>

#include "runtime/base/error.h"

namespace hvd {
namespace {

// On the stack there is room for 128 KiB of arguments and environment, however small its limit is
// (execve(2)); as much for ourselves, whose largest buffer has 64 KiB.
constexpr rlim_t kStackBytesLeast = 256 << 10;

}  // namespace

void check_stack() {
  rlimit stack{};
  if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= kStackBytesLeast) return;
  throw Error(ErrorCode::kUnavailable, "ulimit -s " + std::to_string(stack.rlim_cur / 1024) +
                                           " leaves hvdrun too small a stack; raise it to " +
                                           std::to_string(kStackBytesLeast / 1024) + " or more");
}

}  // namespace hvd
