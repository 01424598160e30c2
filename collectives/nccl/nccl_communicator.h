// A Communicator among ranks that have a GPU each, over NCCL.
//
// What is started here has been ordered and compared already (the log): NCCL compares nothing, and
// where ranks differ it hangs. Operations are launched one after the other on the device's stream,
// each behind its `ready` event; `done` is recorded behind it, and once that has passed it is
// complete. A thread makes all calls for that (nccl_thread.h); this is the holder's end of it. What
// needs no device (barrier, segment, an allgather's counts) goes over `control`, a communicator
// among the same ranks on CPUs, which others may use, too: it gets its part of an operation at
// once, in the order of start(). NCCL's unique ids go through the Store alone. Making one is no
// collective therefore: ranks connect at the first operation.
//
// When the epoch breaks NCCL's communicator is aborted; a process that cannot even do that within
// five seconds ends, since its device would be lost to it anyway, and the others' failures say so.
// (What the program gave its device to do before, and is behind, does not count.) What is not
// complete then fails with its buffers undefined.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/nccl/nccl_thread.h"
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

  // Once `split`, a kSplit that all ranks have started here in one order, is complete, of a rank
  // that has given a color: a communicator among all that have given the same, in the order of
  // their keys, and of ranks where these are equal. `control` is one of these ranks; this outlives
  // it. Operations of all of one family are started in one order on all ranks, as those of one are.
  // It goes with this one, and is closed with it.
  std::unique_ptr<NcclCommunicator> take_split(const Operation& split, Communicator& control);

  int rank() const override { return control_.rank(); }
  int size() const override { return control_.size(); }
  void start(Operation& operation) override;
  bool progress() override;
  bool idle() const override { return queue_.empty() && (!closed_ || is_gone()); }
  std::chrono::milliseconds watch(std::vector<pollfd>& descriptors) const override;
  void close() override;
  bool drained() const override { return closed_ && is_gone(); }
  void fail_rest() override;
  void abort() noexcept override;
  std::vector<int> missing_ranks() const override;
  DeviceWait device_wait() const override;
  uint64_t entered() const override { return thread_ ? thread_->called(member_) : 0; }

 private:
  std::shared_ptr<NcclThread::HostPart> start_host_part(const Operation& operation);
  bool is_gone() const { return !thread_ || left_ || thread_->is_gone() || device_.process_ends(); }
  void take_finished();
  void order_abort();
  std::vector<CUevent> program_before() const;
  [[noreturn]] void end_process(const std::string& why);

  // Constant after construction.
  Peers& peers_;
  CudaDevice& device_;
  const NcclLibrary& nccl_;
  const std::string name_;
  Communicator& control_;
  const NcclLimits limits_;

  // Owned by the holder.
  OperationQueue queue_;
  std::deque<std::shared_ptr<NcclThread::HostPart>> host_parts_;  // that have no outcome
  bool closed_ = false;
  bool gives_ = true;                   // no start has failed
  bool aborts_ = false;                 // that was ordered
  uint64_t news_ = 0;                   // of the thread's, taken
  bool left_ = false;                   // in a whole epoch, of one that was split from another
  std::shared_ptr<NcclThread> thread_;  // the family's; from the first operation on
  size_t member_ = 0;                   // there
};

}  // namespace hvd
