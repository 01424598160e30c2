// How long NCCL and the device are waited for before something else is done about it, and what is
// asked of NCCL at most. Not settings: tests have others.
#pragma once

#include <chrono>

namespace hvd {

struct NcclLimits {
  std::chrono::milliseconds leave{5'000};  // the other ranks, in a whole epoch; then it is aborted
  std::chrono::milliseconds registering{10'000};  // memory; then another rank has failed in it
  std::chrono::milliseconds abort{5'000};  // behind the program's work; then the process ends
  // What the program gave its GPU to do before what is aborted: a backward pass, which may be long;
  // the same then.
  std::chrono::milliseconds program{120'000};
  // The agents' word of a death, where NCCL fails as it does for one; then NCCL's words are told.
  std::chrono::milliseconds word_of_death{2'000};
  std::chrono::milliseconds free{10'000};  // for memory that was let go of; then there is no room
  std::chrono::milliseconds exit{1'000};   // for what is being freed while the process ends
  // That one unique id serves well: it is a meeting point to which all of them connect.
  int ranks_per_unique_id = 128;
};

}  // namespace hvd
