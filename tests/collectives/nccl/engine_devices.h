// Engines whose ranks, threads here, have a device of the stand-in's each.
//
// Catch's assertions are not for several threads: ranks note what they saw, the test checks it.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/deadline.h"
#include "tests/collectives/nccl/device_tensor.h"
#include "tests/runtime/engine/engine_ranks.h"

namespace hvd {

struct DeviceRank {
  int rank;
  Engine& engine;
  ProgramStream& stream;
  float ranks() const { return static_cast<float>(engine.world().size); }
};
using DeviceBody = std::function<void(const DeviceRank&)>;

// Runs `body` as every rank; what it lets out is thrown here again.
void run_on_devices(const Hosts& hosts, const DeviceBody& body, EngineOptions options = {});
// What each rank's `body` threw, as error_of() says it. Ranks end without shutdown().
std::vector<std::string> errors_on_devices(int ranks, const DeviceBody& body,
                                           EngineOptions options = {});

// As a rank's body finds its list: `buckets` of 3000 floats each, summed.
BucketListSpec list_of(const DeviceRank& rank, int buckets, const std::string& name = "sgd");

// Until it is taken back, at the test's end.
class Setting {
 public:
  Setting(const char* name, const char* value);
  ~Setting();
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* const name_;
};

// Kernels that last until they are let go of; one at a time.
class Hold {
 public:
  Hold();
  ~Hold() { let_go(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  void launch(int rank, CUstream stream);  // any thread
  void let_go();
};

// Seconds of its life.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ = std::chrono::duration<double>(Clock::now() - begin_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  const TimePoint begin_ = Clock::now();
};

// The same, without what all threads of the process together waited for a CPU meanwhile: a machine
// that others use is slow, and not what is tested. Nothing of a wait for something else is left
// out.
class BusyStopwatch {
 public:
  explicit BusyStopwatch(double& seconds) : seconds_(seconds) {}
  ~BusyStopwatch();
  BusyStopwatch(const BusyStopwatch&) = delete;
  BusyStopwatch& operator=(const BusyStopwatch&) = delete;

 private:
  static double waited_for_cpu();  // seconds

  double& seconds_;
  const double waited_before_ = waited_for_cpu();
  const TimePoint begin_ = Clock::now();
};

int count_wrong(const std::vector<float>& values, float wanted);

}  // namespace hvd
