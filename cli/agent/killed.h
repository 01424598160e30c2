// What `hvdrun clean` ends on a host: processes with all that is below them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <compare>
#include <set>
#include <utility>
#include <vector>

#include "proto/rendezvous.pb.h"

namespace hvd {

struct Known {
  pid_t pid;
  unsigned long long began;
  auto operator<=>(const Known&) const = default;
};
Known know(pid_t pid);

// Those of several jobs, ended at once: one that cannot be ended holds no other up.
class Killed {
 public:
  // Kills them, and all below. All are stopped before one is killed, so that nobody starts another
  // meanwhile; who may not be stopped, and starts others for ever, is not outrun. `job` stays until
  // await(). Returns how many there are.
  int add(proto::CleanReport::Job& job, const std::vector<Known>& roots);
  // Waits for them, so long at most, and notes with each job who could not be ended.
  void await(std::chrono::milliseconds most);

 private:
  std::vector<std::pair<proto::CleanReport::Job*, std::set<Known>>> of_jobs_;
};

}  // namespace hvd
