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

}  // namespace hvd
