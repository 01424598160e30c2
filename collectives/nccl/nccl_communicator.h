// A Communicator among ranks that have a GPU each, over NCCL.
//
// What is started here has been ordered and compared already (the log): NCCL compares nothing, and
// where ranks differ it hangs. Operations are launched one after the other on the device's stream,
// each behind its `ready` event; `done` is recorded behind it, and once that has passed it is
// complete. What needs no device (barrier, segment, an allgather's counts) goes over `control`, a
// communicator among the same ranks on CPUs, which others may use, too: it gets its part of an
// operation at once, in the order of start(). NCCL's unique ids go through the Store alone. Making
// one is no collective therefore: ranks connect at the first operation.
//
// NCCL is never blocked in: communicators are made non-blocking, so each call may be under way
// after it has returned, whatever it returned, and until ncclCommGetAsyncError() tells that it is
// not nothing else is called. When the epoch breaks the communicator is aborted (NcclAborter),
// beside which nothing is called either; a process that cannot even do that within five seconds
// ends, since its device would be lost to it anyway, and the others' failures say so. (What the
// program gave its device to do before, and is behind, does not count.) What is not complete then
// fails with its buffers undefined.
//
// Of a rank's death NCCL may hear before the agents tell it, by a connection that broke. It does
// not know whose it was, so such a failure is told only if no such word comes.
//
// A failure in the midst of registering memory leaves a communicator that is good for nothing else
// (src/group.cc sets its error for good), and the other ranks wait in NCCL for the one that failed:
// each of them takes too long for a failure, too. It is *spoilt* then, and made anew by kReconnect.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/nccl/cuda_device.h"
#include "collectives/nccl/nccl_aborter.h"
#include "collectives/nccl/nccl_library.h"
#include "collectives/nccl/nccl_limits.h"
#include "collectives/nccl/nccl_windows.h"
#include "collectives/nccl/shared_ids.h"
#include "collectives/nccl/waited_for.h"
#include "collectives/operation_queue.h"
#include "collectives/peers.h"

namespace hvd {

class NcclCommunicator final : public Communicator {
 public:
  // All outlive it; who owns `control`, all of the job's ranks, moves it. `name`, which no other in
  // the epoch has, is also for NCCL's own words.
  NcclCommunicator(Peers& peers, CudaDevice& device, const NcclLibrary& nccl, std::string name,
                   Communicator& control, const NcclLimits& limits = {});
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
  DeviceWait device_wait() const override;
  uint64_t entered() const override { return entered_; }

 private:
  enum class State : uint8_t { kUnmade, kSharesIds, kConnects, kReady, kFinalizes, kAborts, kGone };
  enum class Step : uint8_t { kWait, kMoved };
  // What of an operation is done over `control`, and an allgather's counts.
  struct HostPart {
    Operation operation;
    uint64_t count = 0;
    std::vector<uint64_t> counts;
  };

  // nccl_communicator.cc
  bool move();
  Step connect();
  void make_communicator();
  void start_sharing_ids();
  bool shares_ids() const;
  bool settled();
  bool went(ncclResult_t result);
  void check(ncclResult_t result) const;
  bool finalize();
  void begin_abort();
  bool finish_abort();
  [[noreturn]] void end_process(const std::string& why);
  void fail(const std::string& what);
  bool suspects_death();
  bool is_registering() const;
  bool launches_now() const;
  void spoil(const Error& error);
  void expect_soon(const std::string& what);
  Error failure_in(const std::string& call, ncclResult_t result) const;

  // launch.cc
  Step launch();
  void start_host_part(const Operation& operation);
  void take_host_part(Operation& operation);
  void refuse(Operation& operation, ErrorCode code, const std::string& why);
  void call(Operation& operation);
  Step reconnect(const Operation& operation);
  ncclResult_t call_nccl(Operation& operation);
  ncclResult_t call_allreduce(const Operation& operation);
  ncclResult_t call_allgather(Operation& operation);
  void finish_launch(Operation& operation);
  void scale_result(const Buffer& data, const Reduction& reduction);
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
  const NcclLimits limits_;

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
  NcclWindows windows_;
  std::string suspicion_;  // what NCCL said that may come of another rank's death
  WaitedFor suspected_;
  std::string spoilt_;   // why it is; empty: it is not
  bool renews_ = false;  // once it is aborted
  TimePoint called_at_{};
  WaitedFor expected_;  // the end of that call, or what spoilt it
  std::optional<SharedIds> ids_;
  int meetings_ = 0;                      // for which there were some
  std::deque<CudaDevice::Event> events_;  // of what was launched and has none, the oldest first
  uint64_t entered_ = 0;
  bool closed_ = false, failed_ = false, finalized_ = false;

  WaitedFor leaves_;
  std::optional<NcclAborter> aborter_;
};

}  // namespace hvd
