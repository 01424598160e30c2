// Ranks that are threads of one process, each with a GPU of the stand-in's: LibTorch's device and
// its Engine's.
#pragma once

#include <c10/core/Stream.h>

#include <functional>

#include "tests/runtime/torch/device/operators.h"
#include "tests/runtime/torch/nets.h"
#include "tests/runtime/torch/thread_ranks.h"

namespace hvd {

inline c10::Device device_of(const ThreadRank& rank) { return standin_torch_device(rank.rank); }

// The same net, on the rank's GPU.
nets::MakeNet on_device(const ThreadRank& rank, const nets::MakeNet& make);

// What is submitted to `later` from now on runs after what `earlier` has by now.
void order(const c10::Stream& later, const c10::Stream& earlier);

// As run_as_threads(); each rank's engine uses GPU `rank`, and that is the thread's current device.
void run_on_devices(int size, const std::function<void(const ThreadRank&)>& body);

// Runs `body` as 1, 2 and 4 ranks; fails the Catch2 test when a rank threw.
void check_on_devices(const std::function<void(const ThreadRank&)>& body);

// Settings of the stand-in's, taken back at the end.
class StandinSetting {
 public:
  StandinSetting(const char* name, const char* value);
  ~StandinSetting();
  StandinSetting(const StandinSetting&) = delete;
  StandinSetting& operator=(const StandinSetting&) = delete;

 private:
  const char* name_;
};

}  // namespace hvd
