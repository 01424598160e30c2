// A file descriptor that a forked child must not keep: in its hands a connection would outlive the
// process whose it is.
//
// All of a process are known to close_all_in_child(), which a fork handler calls.
#pragma once

#include <atomic>
#include <utility>

#include "runtime/base/unique_fd.h"

namespace hvd {

class PrivateFd {
 public:
  PrivateFd() = default;
  explicit PrivateFd(UniqueFd fd);
  PrivateFd(PrivateFd&& other) noexcept
      : fd_(std::move(other.fd_)), slot_(std::exchange(other.slot_, nullptr)) {}
  PrivateFd& operator=(PrivateFd&& other) noexcept {
    reset();
    fd_ = std::move(other.fd_);
    slot_ = std::exchange(other.slot_, nullptr);
    return *this;
  }
  ~PrivateFd() { reset(); }

  int get() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  void reset();

  // In a forked child, which has one thread: closes those of the parent. Async-signal-safe.
  static void close_all_in_child() noexcept;

 private:
  UniqueFd fd_;
  std::atomic<int>* slot_ = nullptr;  // where it is noted, plus 1
};

}  // namespace hvd
