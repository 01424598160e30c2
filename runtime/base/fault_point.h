// Named places where a test can make this process die, stop, or fail, at the k-th passing.
//
// Off by default: then a point costs one load of a flag that never changes. Switched on by
// HVD_FAULT_POINT in the environment, read once: NAME:K:ACTION, where NAME may be `*` (any point)
// and ACTION is kill, stop, throw or exit=N. `HVD_FAULT_POINT=count:FILE` counts passings instead
// and appends "NAME COUNT" lines to FILE at exit, so that a test knows all k there are.
// `HVD_FAULT_POINT=delay:SEED` holds each thread up at some of the points, for some microseconds,
// and orders no thread before another by it: what a race detector needs to see more than the
// scheduler's own orders. It stays on, whatever else is armed, until SEED is 0. Every name
// in use is listed in kFaultPoints (fault_point.cc); a program that passes another one aborts, and
// one that is started with any other value of the variable ends with exit code 2 and says why.
#pragma once

#include <atomic>
#include <span>

namespace hvd {

namespace fault {
extern std::atomic<bool> armed;       // set before main() by the environment, or by arm()
void pass(const char* name);          // does what was asked for when the count is reached; throws
                                      // hvd::Error for `throw`
void arm(const char* specification);  // as the environment variable; nullptr disarms. Throws
                                      // kInvalidArgument. For tests with ranks as threads
void arm_here(const char* specification);  // the same, counting what this thread passes only
std::span<const char* const> names();
}  // namespace fault

inline void fault_point(const char* name) {
  if (fault::armed.load(std::memory_order_relaxed)) [[unlikely]]
    fault::pass(name);
}

}  // namespace hvd
