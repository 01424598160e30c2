// Where output goes: one writer thread and a bounded queue in front of a few descriptors.
//
// Flags of inherited descriptors are never changed (they are shared with the shell), so writes may
// block: only the thread does. The owner's loop calls everything else, watches wake_fd(), and stops
// reading its source while full().
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/mutex.h"
#include "runtime/base/wake_fd.h"

namespace hvd {

class Sink {
 public:
  // `name` is the thread's; the descriptors stay the caller's and must outlive the sink.
  Sink(std::string name, std::vector<int> fds, size_t queue_bytes_max);
  ~Sink();  // blocks as long as a write does: a program whose reader may be stuck leaves by _exit

  void push(size_t target, std::string block)
      EXCLUDES(mutex_);                        // dropped and counted once the target has failed
  std::string empty_block() EXCLUDES(mutex_);  // a used one with its memory, or a new one
  // Of what was never idle since then, and `only_still`: of which nothing was taken either, what it
  // holds and what comes is dropped and counted.
  void give_up(TimePoint since, bool only_still) EXCLUDES(mutex_);
  bool full() EXCLUDES(mutex_);                     // wakes when it no longer is
  bool idle() const EXCLUDES(mutex_);               // all is written, or has failed
  int error(size_t target) const EXCLUDES(mutex_);  // errno of the first failed write, 0: none
  int64_t lost_bytes() const EXCLUDES(mutex_);
  int wake_fd() const { return wake_.get(); }  // became not full, idle, or failed
  void clear_wake() const { wake_.clear(); }

 private:
  struct Target {
    int fd;
    int error = 0;
  };
  struct Block {
    size_t target;
    std::string bytes;
  };
  void run(const std::stop_token& stop) EXCLUDES(mutex_);
  int write_all(int fd, const std::string& bytes);
  void written(Block block, int error) REQUIRES(mutex_);

  const std::string name_;
  const size_t queue_bytes_max_;
  const WakeFd wake_;
  mutable Mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Target> targets_ GUARDED_BY(mutex_);
  std::deque<Block> queue_ GUARDED_BY(mutex_);
  std::vector<std::string> used_ GUARDED_BY(mutex_);
  size_t queued_bytes_ GUARDED_BY(mutex_) = 0;  // including the block being written
  int64_t lost_bytes_ GUARDED_BY(mutex_) = 0;
  TimePoint busy_since_ GUARDED_BY(mutex_){};
  size_t writing_bytes_ GUARDED_BY(mutex_) = 0;  // of the block that is being written, and of them
  std::atomic<size_t> done_{0};                  // those that are
  std::atomic<TimePoint> taken_{};               // when some last were
  bool given_up_ GUARDED_BY(mutex_) = false;
  bool full_seen_ GUARDED_BY(mutex_) = false;
  std::jthread thread_;  // starts with the first block
};

}  // namespace hvd
