// The thread that makes all calls on communicators of NCCL: from the first to the abort, in the
// log's order.
//
// NCCL takes one call at a time, and up to 2.26 keeps what it is in the midst of with the thread
// that called (src/group.cc, ncclGroupJobMain). So it is one thread's, which may block where NCCL,
// the driver or an allocator do: who holds the progress token hands operations over, takes back
// what has an outcome, and is rung for when there is news. A bucket's hook launches nothing.
//
// NCCL is never blocked in all the same: communicators are made non-blocking, so each call may be
// under way after it has returned, whatever it returned, and until ncclCommGetAsyncError() tells
// that it is not nothing else is called. Who breaks the epoch so is heard in the midst of anything.
//
// Of a rank's death NCCL may hear before the agents tell it, by a connection that broke. It does
// not know whose it was, so such a failure is told only if no such word comes.
//
// Communicators that are split from the first one have its thread, since NCCL wants one order of
// all on a device. They share NCCL's resources, too, and are aborted with it.
//
// A failure in the midst of registering memory leaves a communicator that is good for nothing else
// (src/group.cc sets its error for good), and the other ranks wait in NCCL for the one that failed:
// each of them takes too long for a failure, too. It is *spoilt* then, and made anew by kReconnect.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/nccl/cuda_device.h"
#include "collectives/nccl/nccl_aborter.h"
#include "collectives/nccl/nccl_library.h"
#include "collectives/nccl/nccl_limits.h"
#include "collectives/nccl/nccl_windows.h"
#include "collectives/nccl/shared_ids.h"
#include "collectives/nccl/waited_for.h"
#include "collectives/peers.h"
#include "runtime/base/mutex.h"

namespace hvd {

class NcclThread {
 public:
  // What of an operation is done over the communicator of CPUs, and an allgather's counts.
  struct HostPart {
    Operation operation;
    uint64_t count = 0;
    std::vector<uint64_t> counts;
  };
  struct Given {
    Operation* operation = nullptr;
    std::shared_ptr<HostPart> host = {};  // null: it has none
    size_t member = 0;     // of the family: the first one, then by the number of the split
    int me = 0, size = 1;  // in that member
  };
  struct Finished {
    Operation* operation = nullptr;
    Outcome outcome = Outcome::kPending;
  };
  enum class Doing : uint8_t { kNothing, kSharesIds, kConnects, kRuns, kGone };
  enum class End : uint8_t { kNone, kLeave, kAbort };

  // Starts it: throws kUnavailable. For a communicator of `size` ranks, among which this one is
  // `me`; its `name` no other in the epoch has, and it is also for NCCL's own words. All outlive
  // it.
  NcclThread(Peers& peers, CudaDevice& device, const NcclLibrary& nccl, std::string name, int me,
             int size, const NcclLimits& limits);
  ~NcclThread() = default;  // joins, so it has to be gone

  // --- The holder's calls.

  // The next one. It is the thread's until it is taken back.
  void give(Given given);
  // A host part has its outcome.
  void wake();
  // How much has been told; more: there is something to take, or an operation is launched.
  uint64_t news() const { return news_.load(std::memory_order_acquire); }
  // What that member was given, in that order.
  std::vector<Finished> take_finished(size_t member);
  // The one that the next split makes, on all ranks alike.
  size_t next_member() { return ++splits_; }
  // Nothing is given any more. kLeave: with all other ranks, in a whole epoch, once all that was
  // given has been taken back; else by an abort, behind these events of the program's, which are
  // asked for when nothing more is called for.
  void end(End how, const std::function<std::vector<CUevent>()>& program = {});
  // An abort that takes too long: why the process has to end; empty: none does.
  std::string overdue() { return aborter_.overdue(); }
  bool aborts() const { return aborter_.is_waited_for(); }

  Doing doing() const { return doing_.load(std::memory_order_acquire); }
  bool is_gone() const { return doing() == Doing::kGone; }
  // The number of the last operation of that member that NCCL was called for.
  uint64_t called(size_t member) const;
  // Ranks whose unique ids have not come.
  std::vector<int> missing() const;

 private:
  enum class State : uint8_t { kUnmade, kSharesIds, kConnects, kReady, kFinalizes, kGone };
  enum class Step : uint8_t { kWait, kMoved };
  enum class News : uint8_t { kNone, kForWaiters, kForAll };
  // Without a communicator where this rank is none.
  struct Member {
    explicit Member(const NcclLibrary& nccl) : windows(nccl) {}
    ncclComm_t communicator = nullptr;
    NcclWindows windows;
    bool finalized = false;
  };
  struct Launched {
    Operation* operation = nullptr;
    size_t member = 0;
    CUevent done = nullptr;
    CudaDevice::Event own = {};  // where the operation has none
    bool refused = false;
  };

  // nccl_thread.cc
  void run();
  void take_given();
  bool step();
  bool move();
  void be(Doing doing);
  void tell_news();
  void sleep();
  bool complete();
  Step connect();
  void make_communicator();
  void start_sharing_ids();
  bool settled();
  bool went(ncclResult_t result);
  void check(ncclResult_t result) const;
  void begin_call(std::string what, size_t member);
  bool leave();
  bool finalize();
  void abort();
  void fail(const std::string& what);
  bool suspects_death();
  bool is_registering() const;
  bool launches_now() const;
  void spoil(const Error& error);
  void expect_soon(const std::string& what);
  Error failure_in(const std::string& call, ncclResult_t result) const;
  Operation& next() const { return *to_launch_.front().operation; }
  Member& member() { return members_[to_launch_.front().member]; }  // next()'s
  ncclComm_t called_on() const {
    return called_on_ < members_.size() ? members_[called_on_].communicator : nullptr;
  }

  // launch.cc
  Step launch();
  Step take_host_part(Operation& operation);
  void refuse(Operation& operation, ErrorCode code, const std::string& why);
  Step call(Operation& operation);
  bool may_call(const Operation& operation);
  Step reconnect();
  ncclResult_t call_nccl(Operation& operation);
  ncclResult_t call_split(const Operation& operation);
  ncclResult_t call_allreduce(const Operation& operation);
  ncclResult_t call_allgather(Operation& operation);
  void finish_launch(Operation& operation);
  void scale_result(const Buffer& data, const Reduction& reduction);
  void go_to_next(Launched launched);

  // Constant after construction.
  Peers& peers_;
  ControlBlock& block_;
  CudaDevice& device_;
  const NcclLibrary& nccl_;
  const std::string name_;
  const int me_, size_;
  const NcclLimits limits_;

  mutable Mutex mutex_;
  std::condition_variable_any wake_;
  bool woken_ GUARDED_BY(mutex_) = false;
  std::deque<Given> given_ GUARDED_BY(mutex_);
  End ordered_ GUARDED_BY(mutex_) = End::kNone;
  std::map<size_t, std::vector<Finished>> finished_ GUARDED_BY(mutex_);  // by member
  std::map<size_t, uint64_t> called_for_ GUARDED_BY(mutex_);             // the same
  std::optional<SharedIds> ids_ GUARDED_BY(mutex_);
  bool closing_ GUARDED_BY(mutex_) = false;  // nothing more is called for
  std::atomic<uint64_t> news_{0};
  std::atomic<Doing> doing_{Doing::kNothing};
  NcclAborter aborter_;
  size_t splits_ = 0;  // the holder's

  // The thread's own.
  State state_ = State::kUnmade;
  News news_to_tell_ = News::kNone;
  TimePoint moved_at_{};
  End end_ = End::kNone;
  std::deque<Member> members_;     // each stays where it is: NCCL writes into one while it splits
  size_t called_on_ = 0;           // the member of the last one of NCCL's calls
  bool under_way_ = false;         // that call
  std::string calling_;            // what it is for, for texts
  std::string said_before_;        // NCCL's last words when it was made
  std::deque<Given> to_launch_;    // the first one is next
  std::deque<Launched> launched_;  // and not done
  bool called_ = false;            // NCCL was, for the next one
  std::optional<ncclRedOp_t> own_op_;
  std::string suspicion_;  // what NCCL said that may come of another rank's death
  WaitedFor suspected_;
  std::string spoilt_;  // why it is; empty: it is not
  TimePoint called_at_{};
  WaitedFor expected_;  // the end of that call, or what spoilt it
  int meetings_ = 0;    // for which there were ids
  bool failed_ = false;
  WaitedFor leaves_;

  std::jthread thread_;  // the last: it uses the others
};

}  // namespace hvd
