#include "cli/pipe.h"

#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "runtime/base/error.h"

namespace hvd {

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(ErrorCode::kUnavailable, std::string("cannot make a pipe: ") +
                                             std::strerror(errno) +
                                             "; raise the limit on open files (ulimit -n)");
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void set_nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

}  // namespace hvd
