// Gives a communicator its next operations, in its order. Driven by whoever makes progress.
#pragma once

#include <poll.h>

#include <chrono>
#include <vector>

#include "runtime/engine/coordinator.h"

namespace hvd {

// All calls with the progress token held; none may block.
class Feed {
 public:
  virtual ~Feed() = default;

  // Starts what may start now and answers what is resolved; true if anything happened.
  virtual bool feed() = 0;
  // Something was asked for here and is not finished: somebody has to keep moving it.
  virtual bool waiting() const = 0;
  // For who goes to sleep: as Communicator::watch().
  virtual std::chrono::milliseconds watch(std::vector<pollfd>& /*descriptors*/) const {
    return std::chrono::milliseconds::max();
  }
  // Nobody touches this epoch any more: what is still waiting fails.
  virtual void epoch_over() = 0;

  // Adds what has waited here or, as far as this rank can know, elsewhere. For stall reports.
  virtual void add_waiting(std::vector<WaitingName>& /*waiting*/) {}
  // While nothing moves, now and then: answers what others have waited for too long.
  virtual void look() {}
  // Waits for something that this rank, which has left, can not have taken part in.
  virtual bool needs(int /*local_rank*/) { return false; }
};

}  // namespace hvd
