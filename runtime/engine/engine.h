// Who moves what: one Engine per epoch owns a rank's communicators, and everything in the process
// that waits for another rank waits here.
//
// Three orders. Program: run(), the init thread's synchronous calls, not negotiated. Log: submit(),
// any thread, named, in the order the coordinator appends. List: an optimizer's buckets, see
// BucketList. One progress token guards all of them: whoever waits takes it and advances
// everything; the engine thread does when nobody waits, and never spins.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "collectives/arena.h"
#include "collectives/communicator.h"
#include "collectives/device_backend.h"
#include "collectives/peers.h"
#include "hvd/work.h"
#include "runtime/engine/bucket_list.h"

namespace hvd {

// Any thread. Does not wait for its reader, since who warns may have to answer others: a warning
// that finds no room is left out.
void warn_on_standard_error(const std::string& text);

struct EngineOptions {
  std::chrono::milliseconds collective_timeout{0};  // of one wait while all peers live; 0: none
  std::chrono::milliseconds stall_warning{60'000};  // 0: no warning
  std::chrono::milliseconds stall_shutdown{0};      // 0: never
  std::chrono::milliseconds start_timeout{30'000};  // until all ranks have made theirs; 0: none
  // A line or more for the user; any thread.
  std::function<void(const std::string&)> warn = warn_on_standard_error;
};

// An operation and what has to live as long as it: the caller's tensors, its name, its result.
struct Submission {
  Operation operation;
  std::string name;  // operation.name points here
  std::shared_ptr<void> keep_alive;
  bool repeats = false;  // it stays when it is done, to be submitted again
};

class HVD_API Engine {
 public:
  // Collective of the local ranks (communicator words, staging). Throws kTimeout naming who is
  // missing.
  Engine(std::unique_ptr<Peers> peers, const EngineOptions& options);
  ~Engine();  // without shutdown() before: as if this rank had died, but tidily
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const World& world() const;
  Peers& peers();

  // Program order, the init thread only: starts, waits, and throws what went wrong (Error when
  // refused, CommFailure when the epoch is broken). The operation is fresh: used once.
  void run(Operation& operation);

  // Log order, any thread: returns at once; everything else is thrown by wait(). Throws
  // kInvalidArgument when there is no name, or when it is already under way on this rank.
  std::shared_ptr<Work> submit(std::unique_ptr<Submission> submission);

  // Collectives of the init thread.
  std::shared_ptr<Segment> add_segment(uint64_t bytes);
  std::unique_ptr<BucketList> make_bucket_list(const BucketListSpec& spec);

  // Any thread, once: what is submitted with Operation::on_device is done there. Such a Work is
  // waited for until it is launched, and done once it has passed on the device. The device outlives
  // this.
  void use_device(DeviceBackend& device);
  DeviceBackend* device() const;  // null: none is used. Any thread

  bool on_init_thread() const;
  // Drains, publishes closed, quiet and left. Local: the others notice at their first operation
  // that needs this rank. What was submitted here but not by all ranks fails. The init thread; the
  // second call does nothing.
  void shutdown();
  // Any thread: the epoch is broken from now on.
  void abort(const std::string& reason) noexcept;
  // In a forked child, where neither the shared memory nor the engine thread exists: from now on
  // every call throws and the destructor touches nothing. Async-signal-safe.
  void forget_in_child() noexcept;

  struct HVD_HIDDEN Parts;

 private:
  std::shared_ptr<Parts> parts_;  // with the bucket lists, which may outlive the Engine
};

}  // namespace hvd
