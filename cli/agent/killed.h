// What `hvdrun clean` ends on a host: processes with all that is below them.
#pragma once

#include <sys/types.h>

#include <compare>
#include <map>
#include <set>
#include <vector>

#include "proto/rendezvous.pb.h"
#include "runtime/base/deadline.h"

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
  // meanwhile; who may not be stopped, and starts others for ever, is not outrun. `job` outlives
  // this. Returns how many there are that were not killed for it before.
  int add(proto::CleanReport::Job& job, const std::vector<Known>& roots);
  // Waits for all that were ever killed, and notes with each job how many live even then.
  void await(Deadline deadline);

 private:
  std::map<proto::CleanReport::Job*, std::set<Known>> of_jobs_;
};

}  // namespace hvd
