// An eventfd by which any thread wakes the loop that watches it.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "runtime/base/unique_fd.h"

namespace hvd {

class WakeFd {
 public:
  WakeFd() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  int get() const { return fd_.get(); }

  void wake() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = write(fd_.get(), &one, sizeof one);
  }
  void clear() const {
    uint64_t count;
    [[maybe_unused]] const ssize_t n = read(fd_.get(), &count, sizeof count);
  }

 private:
  UniqueFd fd_;
};

}  // namespace hvd
