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

#include "runtime/base/mutex.h"
#include "runtime/base/wake_fd.h"

namespace hvd {

class Sink {
 public:
  // `name` is the thread's; the descriptors stay the caller's and must outlive the sink.
  Sink(std::string name, std::vector<int> fds, size_t queue_bytes_max);
  ~Sink();  // blocks as long as a write does: a program whose reader may be stuck leaves by _exit

  // Dropped and counted once the target has failed. A `kept` one outlives drop().
  void push(size_t target, std::string block, bool kept = false) EXCLUDES(mutex_);
  std::string empty_block() EXCLUDES(mutex_);  // a used one with its memory, or a new one
  // What waits is dropped and counted, but for kept blocks; what is being written ends with its
  // line.
  void drop() EXCLUDES(mutex_);
  // All that waits and comes is dropped and counted; what is being written is not waited for.
  void give_up() EXCLUDES(mutex_);
  // Whether anything was taken since the last call, by this program's write or out of what the
  // kernel holds, or there is nothing to take.
  bool takes() EXCLUDES(mutex_);
  bool full() EXCLUDES(mutex_);                     // wakes when it no longer is
  bool idle() const EXCLUDES(mutex_);               // all is written, or has failed
  int error(size_t target) const EXCLUDES(mutex_);  // errno of the first failed write, 0: none
  int64_t lost_bytes() const EXCLUDES(mutex_);      // that could not be written, or were dropped
  int64_t unread_bytes() const EXCLUDES(mutex_);    // of them: dropped, since nobody read them
  int wake_fd() const { return wake_.get(); }       // became not full, idle, or failed
  void clear_wake() const { wake_.clear(); }

 private:
  struct Target {
    int fd;
    bool regular;  // takes any size at once
    int error = 0;
  };
  struct Block {
    size_t target;
    bool kept;
    std::string bytes;
  };
  void run(const std::stop_token& stop) EXCLUDES(mutex_);
  int write_all(const Target& target, const std::string& bytes);
  void written(Block block, int error) REQUIRES(mutex_);
  void note_lost(size_t target, size_t bytes) REQUIRES(mutex_);

  const std::string name_;
  const size_t queue_bytes_max_;
  const WakeFd wake_;
  mutable Mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Target> targets_ GUARDED_BY(mutex_);
  std::deque<Block> queue_ GUARDED_BY(mutex_);
  std::vector<std::string> used_ GUARDED_BY(mutex_);
  size_t queued_bytes_ GUARDED_BY(mutex_) = 0;  // including the block being written
  int64_t failed_bytes_ GUARDED_BY(mutex_) = 0, unread_bytes_ GUARDED_BY(mutex_) = 0;
  size_t writing_bytes_ GUARDED_BY(mutex_) = 0;  // of the block that is being written,
  int writing_fd_ GUARDED_BY(mutex_) = -1;       // where to,
  bool writing_kept_ GUARDED_BY(mutex_) = false;
  std::atomic<size_t> done_{0};     // and those of them that are
  std::atomic<bool> cut_{false};    // it is to end with its line
  std::atomic<uint64_t> taken_{0};  // bytes in all
  uint64_t taken_seen_ GUARDED_BY(mutex_) = 0;
  int held_seen_ GUARDED_BY(mutex_) = 0;  // bytes by the kernel
  bool given_up_ GUARDED_BY(mutex_) = false;
  bool full_seen_ GUARDED_BY(mutex_) = false;
  std::jthread thread_;  // starts with the first block
};

}  // namespace hvd
