#include "runtime/base/last_words.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/deadline.h"

namespace hvd {
namespace {

// How many were written: what is ready to be written to takes PIPE_BUF bytes at once. A pipe that
// nobody reads is ready, too, and would end the process.
size_t write_some(std::string_view words, std::chrono::milliseconds patience) {
  pollfd ready{STDERR_FILENO, POLLOUT, 0};
  const Deadline deadline = Deadline::in(patience);
  int found;
  do found = poll(&ready, 1, deadline.poll_timeout_ms());
  while (found < 0 && errno == EINTR);
  if (found != 1 || (ready.revents & (POLLOUT | POLLERR)) != POLLOUT) return 0;
  const ssize_t written =
      write(STDERR_FILENO, words.data(), std::min<size_t>(words.size(), PIPE_BUF));
  return size_t(std::max<ssize_t>(written, 0));
}

}  // namespace

void write_last_words(std::string_view words, std::chrono::milliseconds patience) {
  while (!words.empty()) {
    const size_t written = write_some(words, patience);
    if (written == 0) return;
    words.remove_prefix(written);
  }
}

}  // namespace hvd
