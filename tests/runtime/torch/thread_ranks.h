// Ranks that are threads of one process, each with an Engine of its own.
#pragma once

#include <functional>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/torch/buckets.h"
#include "tests/support/in_process_peers.h"

namespace hvd {

struct ThreadRank {
  int rank = 0;
  int size = 1;
  Engine* engine = nullptr;
  InProcessHost* host = nullptr;  // of this rank
  MakeBucketList make;            // the engine's; collective of all ranks
};

// Runs `body` as ranks 0 … size-1, shuts their engines down, and rethrows the first exception that
// is no fallout of another rank's.
void run_as_threads(int size, const std::function<void(const ThreadRank&)>& body);
// The same on several hosts.
void run_as_threads(const std::vector<int>& ranks_per_host,
                    const std::function<void(const ThreadRank&)>& body);

}  // namespace hvd
