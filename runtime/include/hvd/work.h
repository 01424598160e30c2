// The result to come of one submitted operation.
#pragma once

#include <memory>

#include "hvd/error.h"

namespace hvd {

// Completes exactly once, with a result or an error. Any thread may ask and wait; whoever waits
// makes progress.
class HVD_API Work {
 public:
  virtual ~Work() = default;
  virtual bool done() const = 0;
  // Returns when complete, of tensors on a GPU once they are in a stream's order; throws Error when
  // ranks disagreed, CommFailure when the epoch broke. May be called again. In a forked child,
  // which is no rank, both throw unless it was done before.
  virtual void wait() = 0;
};

}  // namespace hvd
