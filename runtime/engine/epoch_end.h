// The way out of a broken epoch: close, do one's part, go quiet, and only then give up.
//
// Who sees trouble publishes `closed` in all its communicators, answers `seen`, and goes on with
// what was entered until all of it is resolved; then it is `quiet`. Operations get their failure
// only when every other rank is quiet or dead: from then on nobody touches this rank's memory, and
// what one survivor decides from the words every survivor decides. With the progress token held,
// unless said.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include "collectives/communicator.h"
#include "collectives/peers.h"

namespace hvd {

class EpochEnd {
 public:
  explicit EpochEnd(Peers& peers) : peers_(peers), block_(peers.block()) {}
  EpochEnd(const EpochEnd&) = delete;
  EpochEnd& operator=(const EpochEnd&) = delete;

  // One load while all is well.
  bool trouble_is_new() const { return block_.trouble.load(std::memory_order_acquire) != seen_; }
  bool broken() const { return broken_; }
  bool closed() const { return closed_; }
  bool quiet() const { return quiet_; }
  // All is decided: failures may be thrown. Any thread.
  const std::atomic<bool>& over() const { return over_; }

  // Answers new trouble and, once broken, takes the next step out; true if anything happened.
  bool advance(std::span<Communicator* const> communicators);

  // Closes without trouble: this rank enters nothing more. quiet() follows by advance().
  void close(std::span<Communicator* const> communicators);
  // One that the steps before this have not met, since it was being made: closed, and failed, as
  // the others are.
  void take_in(Communicator& communicator);
  // After quiet(): shutdown() was called here.
  void publish_left();
  // A rank that has called shutdown(), or -1.
  int find_left() const;

  // Why the epoch broke, and who of it was given up on; the same on all survivors once over(). Any
  // thread.
  std::string reason() const;
  TroubleReason reason_kind() const;

 private:
  bool others_gone() const;
  std::string first_reason() const;
  int world_rank(int local_rank) const {
    return peers_.world().rank - peers_.world().local_rank + local_rank;
  }

  Peers& peers_;
  ControlBlock& block_;
  uint32_t seen_ = 0;
  bool broken_ = false;
  bool closed_ = false;
  bool quiet_ = false;
  std::atomic<bool> over_{false};
};

}  // namespace hvd
