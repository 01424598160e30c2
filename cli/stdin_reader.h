// hvdrun's stdin: one thread ("stdin") that reads as much as there is credit for.
//
// A terminal is read only while this process group is in its foreground; SIGTTIN is blocked by the
// caller, so that a read from the background fails with EIO instead of stopping hvdrun (and its
// lease with it). The thread may sit in read() for ever: a program that has one leaves by _exit.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <string>
#include <thread>

#include "runtime/base/mutex.h"
#include "runtime/base/wake_fd.h"

namespace hvd {

inline constexpr size_t kStdinCredit = 64u << 10;

// Descriptor 0 is /dev/null: that needs no thread to find out.
bool stdin_is_empty();

class StdinReader {
 public:
  StdinReader();  // starts to read descriptor 0
  int wake_fd() const { return wake_.get(); }

  struct Taken {
    std::string bytes;
    bool end = false;  // of file, or of what can be read
    int error = 0;     // errno: there is more than could be read
  };
  Taken take() EXCLUDES(mutex_);
  void give_credit(size_t bytes) EXCLUDES(mutex_);
  void continued() { changed_.notify_one(); }  // SIGCONT: perhaps in the foreground again

 private:
  void run(const std::stop_token& stop) EXCLUDES(mutex_);

  const WakeFd wake_;
  Mutex mutex_;
  std::condition_variable_any changed_;
  std::string inbox_ GUARDED_BY(mutex_);
  size_t credit_ GUARDED_BY(mutex_) = kStdinCredit;
  bool end_ GUARDED_BY(mutex_) = false;
  int error_ GUARDED_BY(mutex_) = 0;
  std::jthread thread_;
};

}  // namespace hvd
