#include "runtime/base/error.h"

#include <cstdio>
#include <cstdlib>

namespace hvd {

void check_failed(const char* condition, const char* message, const char* file, int line) noexcept {
  std::fprintf(stderr, "hvd: internal error: %s (%s) at %s:%d\n", message, condition, file, line);
  std::abort();
}

void throw_forked() {
  throw Error(ErrorCode::kUnavailable,
              "this process was forked from a rank and is none; call hvd in the rank itself, or "
              "start a program of its own (exec)");
}

}  // namespace hvd
