// A rank of a communicator, and who may call it when.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#pragma GCC visibility push(default)
#include <nccl.h>
#pragma GCC visibility pop

#include "tests/collectives/nccl/standin/cuda_device.h"
#include "tests/collectives/nccl/standin/nccl_wire.h"
#include "tests/collectives/nccl/standin/state.h"

// Kept when it is destroyed, so that a later use is seen.
struct ncclComm {
  // Constant once it is made.
  std::string hub, root;  // where all ranks meet; of the unique id that serves this one
  uint64_t group = 0, ids_hash = 0;
  int rank = 0, ranks = 0;
  CUcontext context = nullptr;
  bool blocking = true;

  // Guarded by the mutex of hvd::World.
  std::shared_ptr<hvd::Connection> control, data;
  ncclResult_t state = ncclSuccess;  // what ncclCommGetAsyncError() tells
  bool unsettled = false;            // ncclInProgress was returned, and nothing else since
  int jobs = 0;                      // in the background
  uint64_t launched = 0, performed = 0;
  // Of collectives between both: what they read and write.
  std::map<uint64_t, std::vector<std::span<const std::byte>>> touched;
  bool connected = false;  // by its first collective
  bool aborted = false, finalized = false, destroyed = false;
  std::thread::id caller;     // whose call is under way
  ncclComm* child = nullptr;  // that a split is about to make
  std::string error;
  std::map<int, uint64_t> scalars;  // of its reduction operations
  std::map<int, ncclDataType_t> scalar_types;
};

namespace hvd {

// How many collectives a device can run at once.
struct Slots {
  int taken = 0, waiting = 0;
  uint64_t next_ticket = 0;
  std::set<uint64_t> tickets;  // of those that were launched and have not begun
};

struct World {
  std::mutex mutex;
  Condition changed;
  std::set<const ncclComm*> communicators;
  std::map<int, Slots> slots;  // by device
  std::string error;           // the last one
};
World& world();

// A call of the communicator by this thread, for as long as it lives. `result` other than success:
// the call ends with that.
class Visit {
 public:
  Visit(ncclComm* comm, const char* call, bool even_unsettled = false);
  ~Visit();
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

  ncclResult_t result = ncclSuccess;

 private:
  ncclComm* comm_ = nullptr;  // null: it is not counted
};

// The result that the settings have for this call, ncclSuccess for none.
ncclResult_t injected(const char* call, int rank);
bool is_fault_rank(int rank);
// Of a call that never ends of its own.
void wait_until_aborted(const ncclComm* comm);

// Notes the text that ncclGetLastError() tells.
ncclResult_t fail(ncclComm* comm, ncclResult_t result, const std::string& text);
ncclResult_t fail(ncclComm* comm, CUresult failure);
// Of a call that touches the communicator's device: whether that can be (src/include/checks.h,
// CUDACHECK).
ncclResult_t check_device(ncclComm* comm);

// All of ncclCommInitRankConfig() and ncclCommInitRankScalable().
ncclResult_t start_communicator(ncclComm_t* made, int ranks, int rank, const ncclUniqueId* ids,
                                int id_count, const ncclConfig_t* config);
// Meets the other ranks. Called in the background: waits for them, or until it is aborted.
ncclResult_t connect(ncclComm* comm);
// Asks the hub what needs all ranks' calls, and waits as connect().
ncclResult_t ask(ncclComm* comm, const Frame& question, Frame& reply);
// Waits with all ranks for their first collective, or for an abort as the setting launch_hangs has
// it.
ncclResult_t prepare_launch(ncclComm* comm);
bool must_prepare_launch(const ncclComm* comm);
// Waits for the collectives under way, then for all ranks.
ncclResult_t finalize(ncclComm* comm);
// Ends what it does, whatever that waits for; behind what is before it on the device.
void abort(ncclComm* comm);

}  // namespace hvd
