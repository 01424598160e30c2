// Which ranks make NCCL's unique ids. Pure.
#pragma once

namespace hvd {

// One id serves so many ranks well: each is a meeting point to which all of its ranks connect.
inline constexpr int kRanksPerUniqueId = 128;

// 1 unless NCCL can take several (ncclCommInitRankScalable).
int unique_ids_for(int ranks, bool scalable);

// Ranks are split evenly among the ids, the first ones taking one more each, as NCCL does itself;
// the first rank of each part makes its id (NCCL user guide, "Creating a communicator using
// multiple ncclUniqueIds").
bool makes_unique_id(int rank, int ranks, int ids);

}  // namespace hvd
