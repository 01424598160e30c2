// How hvdrun was started: workers get it back unchanged.
#pragma once

#include <string>
#include <vector>

#include "cli/subprocess.h"

namespace hvd {

struct StartState {
  unsigned long long ignored_signals = 0;  // bit n-1: signal n
  std::vector<std::string> environment;    // "NAME=value"
  std::string directory;                   // the working one; empty: it was gone
  std::string named_directory;             // the same by $PWD; empty: by no other name
  std::vector<RlimitValue> limits;
  unsigned core_filter = 0;  // what a core dump holds, as /proc/self/coredump_filter has it
};

// Looks, then makes the process hvdrun's own: closed standard descriptors are taken (what goes to
// standard output fails), core dumps are off or empty, as many descriptors as allowed, and nothing
// in the environment that gRPC would follow. Call before anything else.
StartState take_start_state();

}  // namespace hvd
