// What ranks are to be started from, looked at before they are.
//
// A file system that is mounted by the first look, or whose server is slow, may take minutes, and
// starting a process there blocks. So a thread looks first, and the agent goes on answering; once a
// look has returned the next one does at once.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cli/loop.h"
#include "runtime/base/deadline.h"
#include "runtime/base/mutex.h"
#include "runtime/base/wake_fd.h"

namespace hvd {

// Files one of which is wanted: those behind the first that is there are not looked at.
using Alternatives = std::vector<std::string>;

class FirstLook {
 public:
  // Is it there? Any thread.
  using Look = std::function<bool(const std::string& path)>;
  static bool look_at_path(const std::string& path);

  // `done` is called by the loop, once, when all has been looked at. Throws kUnavailable when there
  // can be no thread.
  FirstLook(Loop& loop, std::vector<Alternatives> wanted, std::function<void()> done,
            Look look = look_at_path);
  ~FirstLook();  // waits for all looks
  FirstLook(const FirstLook&) = delete;
  FirstLook& operator=(const FirstLook&) = delete;

  // The path that is being looked at, told once, when that has taken a second.
  std::optional<std::string> take_slow_path(TimePoint now);

 private:
  void run();
  void begin(const std::string& path) EXCLUDES(mutex_);

  Loop& loop_;
  const std::vector<Alternatives> wanted_;
  const Look look_;
  const WakeFd over_;
  bool told_ = false;
  Mutex mutex_;
  std::string path_ GUARDED_BY(mutex_);  // empty: none any more
  TimePoint since_ GUARDED_BY(mutex_) = Clock::now();
  std::jthread thread_;  // last: it ends before what it uses
};

}  // namespace hvd
