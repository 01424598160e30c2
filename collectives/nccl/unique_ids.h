// Which ranks make NCCL's unique ids. Pure.
#pragma once

namespace hvd {

// One for each `each` ranks; 1 unless NCCL can take several (ncclCommInitRankScalable).
int unique_ids_for(int ranks, bool scalable, int each);

// Ranks are split evenly among the ids, the first ones taking one more each, as NCCL does itself;
// the first rank of each part makes its id (NCCL user guide, "Creating a communicator using
// multiple ncclUniqueIds").
bool makes_unique_id(int rank, int ranks, int ids);

}  // namespace hvd
