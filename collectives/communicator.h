// Moves and reduces buffers among a fixed set of ranks. Start here.
//
// All members start the same operations in the same order. One thread at a time moves a rank's
// communicators: the holder of the Context's progress token. Nothing here blocks: start() queues,
// progress() does a bounded piece of work (a chunk, 1 MiB at most, a huge page).
//
// Every operation passes, in order, through *entered* (this rank's part is published), *worked*
// (this rank neither reads nor writes any peer's memory for it any more) and *resolved* (complete,
// refused, or failed). Entries are compared before anything is touched: when two ranks started
// different operations, that operation is refused on every rank with a text that names both sides,
// and the next one goes on.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/arena.h"
#include "collectives/types.h"
#include "hvd/error.h"

namespace hvd {

enum class OperationKind : uint8_t {
  kAllreduce,
  kAllgather,
  kBroadcast,
  kBarrier,
  kSegment,
  // On a device only: `result` lies there, which is registered with the communicator from now on,
  // or refused on this rank alone. kUnsupported: that is not to be had here. kUnavailable, or
  // kTimeout where it waited for others: the communicator is good for nothing more but to be made
  // anew on all ranks, with nothing registered.
  kRegister,
  kDeregister,
  kReconnect,
  // On a device only: ranks of one color have a communicator of their own then, see
  // NcclCommunicator::take_split().
  kSplit
};

enum class Outcome : uint8_t {
  kPending,
  kComplete,
  kRefused,  // ranks differ, or it cannot be done; nothing was touched; `error` says who differs in
             // what; the world lives
  kFailedUntouched,  // the epoch is broken; the buffers hold what they held
  kFailedUndefined,  // the epoch is broken; results may be half written. Which of the two is the
                     // same on all survivors; between hosts it is this one, and survivors may
                     // differ in the last operation that completed, by one at most
};

// One operation, owned by whoever starts it: it stays where it is until `outcome` is no longer
// kPending.
struct Operation {
  // What is asked for; all but `input`, `result.data` and an allgather's count has to agree on all
  // members.
  OperationKind kind = OperationKind::kBarrier;
  Buffer result = {};      // allreduce, broadcast: the data, in place
  ConstBuffer input = {};  // allgather: this rank's part (counts may differ), of result.type
  // allgather: called inside progress(), when all counts are known; returns where all parts go, in
  // rank order (on a device on a thread of the communicator's), and is called again while it
  // returns nothing for a result that is not empty: of large memory it makes a piece at a time (on
  // a device all at once). When it throws, the operation is refused on this rank alone; on a
  // device, where the others may have launched it by then, the epoch ends.
  std::function<void*(std::span<const uint64_t> counts)> allocate = {};
  Reduction reduction = {};  // allreduce
  int root = 0;              // broadcast
  int color = 0, key = 0;    // kSplit: need not agree; a color below zero is none
  uint32_t segment = 0;      // kSegment: number of the segment to add, used up even when refused
  uint64_t segment_bytes = 0;
  uint64_t populate_bytes =
      0;                    // kSegment: faulted in by all, from its begin; the rest at first use
  uint64_t shape_hash = 0;  // of what else has to agree (dimensions)
  // Has to agree; for error texts. Both are borrowed until the operation is resolved.
  std::string_view name = {};
  std::string_view shape = {};  // for error texts: "float32 [64, 10]"; empty: type and count

  // Its tensors lie on a device, whose events these are: they are there once `ready` has passed
  // (null: now), and `done`, recorded behind what is done with them, tells when the result is
  // (null: nobody asks).
  bool on_device = false;
  void* ready = nullptr;
  void* done = nullptr;

  // On a device, where memory is registered: this rank's buffer lies elsewhere than the others'
  // may; once it is started: some rank's does. Then what is registered goes through `aside`, as
  // many bytes that are not (null: it is not registered).
  bool apart = false;
  void* aside = nullptr;

  // How it went. `error` is set before an outcome other than kComplete is published.
  std::string error = {};
  ErrorCode code = ErrorCode::kInvalidArgument;  // of a refusal
  bool disagreed = false;  // refused by all ranks, since they called different operations
  std::atomic<Outcome> outcome{Outcome::kPending};
  std::atomic<bool> launched{false};  // on a device: `done` was recorded

  // The communicator's own.
  Operation* next = nullptr;
  uint64_t sequence = 0;
  uint64_t hash = 0;
  ArenaAddress address = {};
  uint32_t stage = 0;
};

// What a rank waits for that lies with a device and its library, which mostly do not say for which
// rank they wait.
struct DeviceWait {
  std::string what = {};          // in the midst of which it is; empty: there is none
  uint64_t number = 0;            // differs between two of them
  bool connecting = false;        // the ranks' first meeting there
  std::vector<int> missing = {};  // ranks of the job, where they are known
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Queues an operation behind those started before. The reduction was checked
  // (check_reduction()); the memory of result and input stays as it is until the outcome. After
  // close() it fails as kFailedUntouched.
  virtual void start(Operation& operation) = 0;
  // Advances what was started; true if anything moved. The holder only.
  virtual bool progress() = 0;
  // Nothing started is unresolved.
  virtual bool idle() const = 0;

  // For who goes to sleep: adds the descriptors, beside the doorbell, that would let what is under
  // way move on; returns after how long to look again all the same: 0, for a moment only, instead
  // of sleeping. The holder only.
  virtual std::chrono::milliseconds watch(std::vector<pollfd>& /*descriptors*/) const {
    return std::chrono::milliseconds::max();
  }

  // The way out of a broken epoch, driven by the Engine (holder only): close() publishes that
  // nothing more is entered, after it frozen peers make operations fail; drained(): whatever was
  // entered and can complete is complete; fail_rest(), once every other rank is quiet or dead,
  // gives the remaining operations their outcome. close() alone, while nothing is unresolved, lets
  // go of this communicator in a whole epoch: it breaks for who starts another operation here.
  virtual void close() = 0;
  virtual bool drained() const = 0;
  virtual void fail_rest() = 0;

  // Any thread: the epoch is broken from now on; who makes progress sees it.
  virtual void abort() noexcept = 0;

  // Ranks of the job that have not entered the oldest unresolved operation of this rank or, where
  // that is known, stand still in it: for warnings and timeouts. The holder only.
  virtual std::vector<int> missing_ranks() const = 0;
  // Those that have not entered it.
  virtual std::vector<int> not_entered() const { return missing_ranks(); }
  // For the same, and for timeouts.
  virtual DeviceWait device_wait() const { return {}; }
  virtual uint64_t entered() const = 0;  // operations so far
};

}  // namespace hvd
