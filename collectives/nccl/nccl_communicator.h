// A Communicator among ranks that have a GPU each, over NCCL.
//
// What is started here has been ordered and compared already (the log): NCCL compares nothing, and
// where ranks differ it hangs. Operations are launched one after the other on the device's stream,
// each behind its `ready` event; `done` is recorded behind it, and once that has passed it is
// complete. What needs no device (barrier, segment, an allgather's counts, NCCL's unique ids) goes
// over `control`, a communicator among the same ranks on CPUs, which others may use, too: it gets
// its part of an operation at once, in the order of start(). Making one is no collective therefore:
// ranks connect at the first operation.
//
// NCCL is never blocked in: communicators are made non-blocking, so each call may be under way
// after it has returned, and until it is not nothing else is called. When the epoch breaks the
// communicator is aborted by a thread of its own, beside which nothing is called either; a process
// that cannot even do that within five seconds ends, since its device would be lost to it anyway.
// What is not complete then fails with its buffers undefined.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/nccl/cuda_device.h"
#include "collectives/nccl/nccl_library.h"
#include "collectives/nccl/nccl_reduction.h"
#include "collectives/operation_queue.h"
#include "collectives/peers.h"

namespace hvd {

class NcclCommunicator final : public Communicator {
 public:
  // All outlive it; who owns `control` moves it. `name` is for NCCL's own words.
  NcclCommunicator(Peers& peers, CudaDevice& device, const NcclLibrary& nccl, std::string name,
                   Communicator& control);
  ~NcclCommunicator() override;

  int rank() const override { return me_; }
  int size() const override { return size_; }
  void start(Operation& operation) override;
  bool progress() override;
  bool idle() const override;
  std::chrono::milliseconds watch(std::vector<pollfd>& descriptors) const override;
  void close() override;
  bool drained() const override { return closed_ && state_ == State::kGone; }
  void fail_rest() override;
  void abort() noexcept override;
  std::vector<int> missing_ranks() const override;
  uint64_t entered() const override { return entered_; }

 private:
  enum class State : uint8_t {
    kUnmade,
    kSharesIds,  // over `control`
    kConnects,
    kReady,
    kFinalizes,
    kAborts,
    kGone
  };
  enum class Step : uint8_t { kWait, kMoved };
  // What of an operation is done over `control`, and an allgather's counts.
  struct HostPart {
    Operation operation;
    uint64_t count = 0;
    std::vector<uint64_t> counts;
    bool is_done() const;
  };

  // nccl_communicator.cc
  bool move();
  Step connect();
  void make_communicator();
  void start_sharing_ids();
  bool settled();
  bool went(ncclResult_t result);
  bool finalize();
  void begin_abort();
  bool finish_abort();
  void fail(const std::string& what);

  // launch.cc
  Step launch();
  void start_host_part(const Operation& operation);
  void take_host_part(Operation& operation);
  void refuse(Operation& operation, ErrorCode code, const std::string& why);
  void call(Operation& operation);
  ncclResult_t call_allreduce(const Operation& operation, NcclReduction reduction);
  ncclResult_t call_allgather(Operation& operation);
  void finish_launch(Operation& operation);
  void go_to_next(const Operation& operation);
  bool complete();

  // Constant after construction.
  Peers& peers_;
  ControlBlock& block_;
  CudaDevice& device_;
  const NcclLibrary& nccl_;
  const std::string name_;
  Communicator& control_;
  const int me_, size_;

  // Owned by the holder.
  State state_ = State::kUnmade;
  ncclComm_t communicator_ = nullptr;
  bool under_way_ = false;     // the last one of NCCL's calls
  std::string calling_;        // what it is for, for texts
  OperationQueue queue_;       // the oldest one is launched and not done, or `next_`
  Operation* next_ = nullptr;  // to be launched
  bool called_ = false;        // NCCL was, for that one
  std::deque<std::unique_ptr<HostPart>> host_parts_;  // of what waits to be launched
  std::optional<ncclRedOp_t> own_op_;
  HostPart sharing_;
  std::vector<ncclUniqueId> ids_;
  ncclUniqueId own_id_{};
  std::deque<CudaDevice::Event> events_;  // of what was launched and has none, the oldest first
  uint64_t entered_ = 0;
  bool closed_ = false, failed_ = false, finalized_ = false;

  std::atomic<bool> aborted_{false};
  TimePoint end_began_{};  // of finalizing, or of the abort
  std::jthread abort_thread_;
};

}  // namespace hvd
