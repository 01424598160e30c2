#include "tests/collectives/nccl/engine_devices.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <utility>

#include "tests/collectives/nccl/standin.h"
#include "tests/support/until.h"

namespace hvd {
namespace {

void run_one(int rank, Engine& engine, const DeviceBody& body) {
  engine.use_device(standin_backend(rank));
  ProgramStream stream(rank);
  body({rank, engine, stream});
}

std::atomic<bool> held{false};

void hold(const unsigned*, const unsigned*, void**) {
  comes_about([] { return !held.load(); });
}

}  // namespace

void run_on_devices(const Hosts& hosts, const DeviceBody& body, EngineOptions options) {
  run_engines(
      hosts, [&](int rank, Engine& engine) { run_one(rank, engine, body); }, std::move(options));
}

std::vector<std::string> errors_on_devices(int ranks, const DeviceBody& body,
                                           EngineOptions options) {
  std::vector<std::string> said(static_cast<size_t>(ranks));
  run_engines(
      Hosts{ranks},
      [&](int rank, Engine& engine) {
        said[static_cast<size_t>(rank)] = error_of([&] { run_one(rank, engine, body); });
      },
      std::move(options), false);
  return said;
}

BucketListSpec list_of(const DeviceRank& rank, int buckets, const std::string& name) {
  BucketListSpec spec;
  spec.name = name;
  spec.buckets.assign(static_cast<size_t>(buckets), {DataType::kFloat32, 3000});
  spec.parameters = buckets;
  spec.layout = std::to_string(buckets);
  spec.reduction.op = ReduceOp::kSum;
  spec.device = rank.rank;
  return spec;
}

Setting::Setting(const char* name, const char* value) : name_(name) {
  hvd_standin_set(name, value);
}
Setting::~Setting() { hvd_standin_set(name_, nullptr); }

Hold::Hold() {
  const size_t none = 0;
  hvd_standin_kernel("test_hold", 0, &none, hold);
  held = true;
}

void Hold::launch(int rank, CUstream stream) {
  const CudaDevice::Current current(standin_device(rank));
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  const CudaDriver& driver = standin_driver();
  driver.check(cuModuleLoadData(&module, "image"), "the test's module");
  driver.check(cuModuleGetFunction(&function, module, "test_hold"), "the test's kernel");
  driver.check(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, nullptr),
               "the test's kernel");
}

void Hold::let_go() { held = false; }

BusyStopwatch::~BusyStopwatch() {
  const double wall = std::chrono::duration<double>(Clock::now() - begin_).count();
  // Threads that have ended meanwhile took theirs with them.
  seconds_ = wall - std::max(waited_for_cpu() - waited_before_, 0.0);
}

// proc(5), /proc/PID/task/TID/schedstat: nanoseconds on a CPU, and of waiting for one.
double BusyStopwatch::waited_for_cpu() {
  double seconds = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(thread.path() / "schedstat");
    double ran = 0, waited = 0;
    if (file >> ran >> waited) seconds += waited / 1e9;
  }
  return seconds;
}

int count_wrong(const std::vector<float>& values, float wanted) {
  return static_cast<int>(
      std::count_if(values.begin(), values.end(), [&](float x) { return x != wanted; }));
}

}  // namespace hvd
