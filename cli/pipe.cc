#include "cli/pipe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "runtime/base/error.h"
#include "runtime/base/last_words.h"
#include "runtime/base/open_files.h"
#include "runtime/base/start_thread.h"

namespace hvd {

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(ErrorCode::kUnavailable, "cannot make a pipe: " + error_text(errno));
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

UniqueFd open_null() {
  UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null)
    throw Error(ErrorCode::kUnavailable, "/dev/null cannot be opened: " + error_text(errno));
  return null;
}

std::string error_text(int error) {
  const std::string text = std::strerror(error);
  if (error == EMFILE) return text + "; " + kRaiseOpenFiles;
  if (error == EAGAIN) return text + "; " + thread_shortage();
  return text;
}

void set_nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

// Where it cannot be written the connection ends, and standard input with it.
void give_sign_of_life() {
  struct stat output{}, words{};
  if (fstat(STDOUT_FILENO, &output) == 0 && fstat(STDERR_FILENO, &words) == 0 &&
      output.st_dev == words.st_dev && output.st_ino == words.st_ino)
    return;
  write_last_words("\n");
}

}  // namespace hvd
