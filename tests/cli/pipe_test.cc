// Words on standard error that nobody waits for, and signs of life.
#include "cli/pipe.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <string>

#include "tests/support/catch.h"

namespace hvd {
namespace {

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

int unread(const Pipe& pipe) {
  int bytes = -1;
  ioctl(pipe.read.get(), FIONREAD, &bytes);
  return bytes;
}

void fill(const Pipe& pipe) {
  const std::string page(4096, 'x');
  set_nonblocking(pipe.write.get());
  while (write(pipe.write.get(), page.data(), page.size()) > 0) {
  }
  fcntl(pipe.write.get(), F_SETFL, fcntl(pipe.write.get(), F_GETFL) & ~O_NONBLOCK);
}

}  // namespace

TEST_CASE("pipe: words wait for no reader of standard error") {
  const Pipe pipe = make_pipe();
  {
    const Redirected redirected(STDERR_FILENO, pipe.write);
    write_words("so\n");
  }
  CHECK(unread(pipe) == 3);
  fill(pipe);
  const int full = unread(pipe);
  {
    const Redirected redirected(STDERR_FILENO, pipe.write);
    alarm(20);  // the end of a process that waits after all
    write_words("so\n");
    give_sign_of_life();
    alarm(0);
  }
  CHECK(unread(pipe) == full);
}

TEST_CASE("pipe: no sign of life gets into the frames on standard output") {
  const Pipe frames = make_pipe(), words = make_pipe();
  for (const bool same : {true, false}) {
    const Redirected output(STDOUT_FILENO, frames.write);
    const Redirected error(STDERR_FILENO, same ? frames.write : words.write);
    give_sign_of_life();
  }
  CHECK(unread(frames) == 0);
  CHECK(unread(words) == 1);
}

}  // namespace hvd
