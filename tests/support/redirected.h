// Descriptors of this process that are others for a while, and a pipe with no room left.
#pragma once

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <string>

#include "runtime/base/unique_fd.h"

namespace hvd {

// Until its end this process has `to` in the place of `fd`.
class Redirected {
 public:
  Redirected(int fd, const UniqueFd& to) : fd_(fd), before_(fcntl(fd, F_DUPFD_CLOEXEC, 3)) {
    dup2(to.get(), fd_);
  }
  ~Redirected() { dup2(before_.get(), fd_); }

 private:
  int fd_;
  UniqueFd before_;
};

struct TestPipe {
  TestPipe() {
    int ends[2] = {-1, -1};
    if (pipe2(ends, O_CLOEXEC) == 0) read = UniqueFd(ends[0]), write = UniqueFd(ends[1]);
  }
  int unread() const {
    int bytes = -1;
    ioctl(read.get(), FIONREAD, &bytes);
    return bytes;
  }
  void fill() const {
    const std::string page(4096, 'x');
    const int flags = fcntl(write.get(), F_GETFL);
    fcntl(write.get(), F_SETFL, flags | O_NONBLOCK);
    while (::write(write.get(), page.data(), page.size()) > 0) {
    }
    fcntl(write.get(), F_SETFL, flags);
  }

  UniqueFd read, write;
};

// Whether what says something on standard error leaves it be where it has no room. Who waits there
// for its reader after all is ended by SIGALRM.
template <class Say>
bool waits_for_no_reader(Say say) {
  const TestPipe pipe;
  pipe.fill();
  const int full = pipe.unread();
  const Redirected redirected(STDERR_FILENO, pipe.write);
  alarm(20);
  say();
  alarm(0);
  return full > 0 && pipe.unread() == full;
}

}  // namespace hvd
