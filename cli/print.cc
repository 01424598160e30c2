#include "cli/print.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "cli/signals.h"
#include "runtime/base/error.h"

namespace hvd {

int try_print(const std::string& text) {
  const bool written = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  return written ? 0 : errno;
}

void check_printed(int error) {
  if (error == EPIPE) die_by(SIGPIPE);
  if (error != 0)
    throw Error(ErrorCode::kUnavailable, std::string("cannot write to standard output: ") +
                                             std::strerror(error) + "; send it somewhere else");
}

void print(const std::string& text) { check_printed(try_print(text)); }

}  // namespace hvd
