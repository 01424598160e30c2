#include "cli/stdin_reader.h"

#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>
#include <vector>

#include "runtime/base/start_thread.h"

namespace hvd {
namespace {

// How often a terminal that is another group's is looked at again, when no SIGCONT says so.
constexpr std::chrono::milliseconds kForegroundCheck{500};

bool in_foreground() {
  const pid_t group = tcgetpgrp(0);
  return group < 0 || group == getpgrp();  // not our controlling terminal: nothing to compare
}

}  // namespace

bool stdin_is_empty() {
  struct stat in{};
  return fstat(0, &in) == 0 && S_ISCHR(in.st_mode) && in.st_rdev == makedev(1, 3);
}

StdinReader::StdinReader()
    : thread_(start_thread("stdin's", [this](const std::stop_token& stop) { run(stop); })) {}

void StdinReader::run(const std::stop_token& stop) NO_THREAD_SAFETY_ANALYSIS {
  pthread_setname_np(pthread_self(), "stdin");
  std::vector<char> buffer(kStdinCredit);
  const bool terminal = isatty(0) == 1;
  auto credit = [this]() NO_THREAD_SAFETY_ANALYSIS { return credit_ > 0; };
  auto pause = [&](std::unique_lock<Mutex>& lock) { changed_.wait_for(lock, kForegroundCheck); };
  std::unique_lock<Mutex> lock(mutex_);
  while (changed_.wait(lock, stop, credit) && !stop.stop_requested()) {
    if (terminal && !in_foreground()) {
      pause(lock);
      continue;
    }
    const size_t most = std::min(credit_, buffer.size());
    lock.unlock();
    const ssize_t n = read(0, buffer.data(), most);
    const int error = errno;
    if (n < 0 && error == EAGAIN) {  // somebody else made the shared description non-blocking
      pollfd one{0, POLLIN, 0};
      poll(&one, 1, -1);
    }
    lock.lock();
    if (n < 0 && (error == EINTR || error == EAGAIN)) continue;
    if (n < 0 && error == EIO && terminal) {
      pause(lock);
      continue;
    }
    if (n < 0) error_ = error;
    if (n <= 0) break;
    credit_ -= size_t(n);
    inbox_.append(buffer.data(), size_t(n));
    wake_.wake();
  }
  end_ = true;
  wake_.wake();
}

StdinReader::Taken StdinReader::take() {
  wake_.clear();
  MutexLock lock(mutex_);
  return {std::exchange(inbox_, {}), end_, error_};
}

void StdinReader::give_credit(size_t bytes) {
  MutexLock lock(mutex_);
  credit_ += bytes;
  changed_.notify_one();
}

}  // namespace hvd
