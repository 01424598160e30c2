// Counts who was refused why, and says it once for each address and reason.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"

namespace hvd {

class Refusals {
 public:
  // `whom` without its port. True: there is a new line.
  bool note(const std::string& whom, const std::string& why) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++count_;
    if (said_.size() > kLinesMax || !said_.emplace(whom, why).second) return false;
    lines_.push_back(said_.size() > kLinesMax
                         ? "more connections were refused; nothing more is said of them"
                         : "refused " + whom + ": " + why);
    return true;
  }
  std::vector<std::string> take() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return std::exchange(lines_, {});
  }
  size_t count() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return count_;
  }

 private:
  static constexpr size_t kLinesMax = 32;  // whoever attacks must not fill the user's terminal

  mutable Mutex mutex_;
  size_t count_ GUARDED_BY(mutex_) = 0;
  std::set<std::pair<std::string, std::string>> said_ GUARDED_BY(mutex_);
  std::vector<std::string> lines_ GUARDED_BY(mutex_);
};

}  // namespace hvd
