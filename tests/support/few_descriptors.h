// The lack of file descriptors, for tests.
#pragma once

#include <fcntl.h>
#include <sys/resource.h>

#include <vector>

#include "runtime/base/unique_fd.h"

namespace hvd {

// This process may open `left` descriptors, and no more but in place of one that it closes.
class FewDescriptors {
 public:
  explicit FewDescriptors(int left) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{64, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    for (int fd; (fd = fcntl(0, F_DUPFD_CLOEXEC, 3)) >= 0;) taken_.emplace_back(fd);
    for (; left > 0; --left) taken_.pop_back();
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
  std::vector<UniqueFd> taken_;
};

}  // namespace hvd
