// Who a rank is among all ranks of a job.
#pragma once

#include <cstdint>
#include <string>

namespace hvd {

// One agreed set of ranks, as one member sees it. A new epoch is a new World.
struct World {
  uint32_t epoch = 0;                  // grows by one with every new membership; 0: none yet
  int rank = 0, size = 1;              // in the job
  int local_rank = 0, local_size = 1;  // on this host
  int cross_rank = 0, cross_size = 1;  // among the hosts that have this local rank
  std::string host;                    // as the user wrote it

  friend bool operator==(const World&, const World&) = default;
};

}  // namespace hvd
