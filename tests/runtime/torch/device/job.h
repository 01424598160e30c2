// A test case as a program sees it: within init() and shutdown(), on this rank's GPU of the
// stand-in's.
#pragma once

#include "hvd/hvd.h"
#include "tests/runtime/torch/device/operators.h"

namespace hvd {

struct Job {
  Job() { init(); }
  ~Job() { shutdown(); }
};

inline c10::Device device() { return standin_torch_device(local_rank()); }

}  // namespace hvd
