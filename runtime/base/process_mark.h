// Marks the process that something belongs to. A forked child is told from it without a system
// call: training asks several times for each gradient.
#pragma once

#include <cstdint>

#include "hvd/error.h"

namespace hvd {

// Of this process, from now on. Throws kUnavailable when there is no memory for it.
void call_in_forked_children(void (*handler)());

// Thread-safe. A child of vfork() or clone(), for which no fork handlers run, is not told apart.
class ProcessMark {
 public:
  // Marks the calling process. Throws kUnavailable when there is no memory for a fork handler.
  HVD_API ProcessMark();

  // This is a child that was forked from the marked process, or a child's child.
  HVD_API bool in_child() const noexcept;

 private:
  uint64_t forks_;
};

}  // namespace hvd
