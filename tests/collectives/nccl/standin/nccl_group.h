// Calls as NCCL groups them: what the other ranks must join first, then what the streams do.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "tests/collectives/nccl/standin/nccl_communicator.h"

namespace hvd {

// A collective as it was called.
struct Call {
  Collective kind = Collective::kAllReduce;
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;  // of `from`, elements
  ncclDataType_t type = ncclFloat32;
  int op = ncclSum;
  uint64_t scalar = 0;
  int root = 0;
  CUstream stream = nullptr;
};

// One of the two.
struct Operation {
  ncclComm* comm = nullptr;
  std::function<ncclResult_t()> job;
  std::optional<Call> call;
};

// Does it at once, or at the end of this thread's group. ncclInProgress: it goes on in the
// background.
ncclResult_t submit(Operation operation);
// The result of a call that a group may hold: the group's end has that of the last one that failed,
// and then nothing of it is done (src/include/group.h, ncclGroupErrCheck(); src/group.cc,
// ncclGroupEndInternal()).
ncclResult_t note_in_group(ncclResult_t result);

void begin_group();
ncclResult_t end_group();

}  // namespace hvd
