// Which of the GPUs that a process sees is its own. Pure.
#pragma once

#include <string>

#include "hvd/error.h"

namespace hvd {

// Of `seen` ones, 1 at least, as CUDA numbers them: the only one, whatever the local rank, else
// that of the local rank. Throws kUnavailable when there are too few, unless ranks share them.
inline int own_gpu(int seen, int local_rank, bool shared = false) {
  if (seen == 1 || shared) return local_rank % seen;
  if (local_rank < seen) return local_rank;
  throw Error(
      ErrorCode::kUnavailable,
      "local rank " + std::to_string(local_rank) + " has no GPU: it sees " + std::to_string(seen) +
          "; start at most that many ranks on this host, or let them share (hvdrun --share-gpu)");
}

}  // namespace hvd
