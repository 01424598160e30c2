// Says of trees of shipped files that they are used: `hvdrun clean` goes by the time of their
// folders, and also where locks do not reach another host.
//
// A thread of its own, since a file system may hold up who touches it, a hung server's for as long
// as that takes; the agent's loop must not wait for it.
#pragma once

#include <chrono>
#include <thread>
#include <vector>

#include "runtime/base/unique_fd.h"

namespace hvd {

class TreeUse {
 public:
  // `trees`: their folders, locked; they stay open for as long as this lives. Throws kUnavailable
  // when there can be no thread.
  explicit TreeUse(std::vector<UniqueFd> trees,
                   std::chrono::milliseconds every = std::chrono::hours(1));
  ~TreeUse();  // waits for a touch under way
  TreeUse(const TreeUse&) = delete;
  TreeUse& operator=(const TreeUse&) = delete;

 private:
  const std::vector<UniqueFd> trees_;
  std::jthread thread_;  // last: it ends before what it uses
};

}  // namespace hvd
