// What a gradient's hook pays for a bucket on a device, in counts: its time is gpu_check's.
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "tests/collectives/nccl/engine_devices.h"
#include "tests/support/allocations.h"
#include "tests/support/catch.h"
#include "tests/support/until.h"

using namespace hvd;

namespace {

// What this thread has done so far; allocations of the device's calls are the stand-in's own.
struct Costs {
  long allocations = 0, events = 0, records = 0;

  Costs since(const Costs& before) const {
    return {allocations - before.allocations, events - before.events, records - before.records};
  }
};
thread_local Costs of_device;

Costs costs_now() {
  Costs now = of_device;
  now.allocations = allocations_of_this_thread() - of_device.allocations;
  return now;
}

// While it lives what is allocated is the stand-in's.
class InDevice {
 public:
  ~InDevice() { of_device.allocations += allocations_of_this_thread() - before_; }

 private:
  const long before_ = allocations_of_this_thread();
};

class CountedBackend final : public DeviceBackend {
 public:
  explicit CountedBackend(int rank) : device_(standin_backend(rank)) {}

  int ordinal() const override { return device_.ordinal(); }
  std::string description() const override { return device_.description(); }
  std::unique_ptr<Communicator> make_communicator(Peers& peers, const std::string& name,
                                                  Communicator& control) override {
    return device_.make_communicator(peers, name, control);
  }
  std::shared_ptr<std::byte> allocate(size_t bytes) override { return device_.allocate(bytes); }
  std::shared_ptr<std::byte> allocate_plain(size_t bytes) override {
    return device_.allocate_plain(bytes);
  }
  bool has(const void* data) const override { return device_.has(data); }
  void* take_event() override {
    const InDevice in_device;
    ++of_device.events;
    return device_.take_event();
  }
  void give_back(void* event) noexcept override {
    const InDevice in_device;
    device_.give_back(event);
  }
  void record(void* event, void* stream) override {
    const InDevice in_device;
    ++of_device.records;
    device_.record(event, stream);
  }
  void wait(void* stream, void* event) override { device_.wait(stream, event); }
  void cast(std::span<const Cast> casts, double factor, void* stream) override {
    device_.cast(casts, factor, stream);
  }
  bool can_cast() const override { return device_.can_cast(); }

 private:
  DeviceBackend& device_;
};

}  // namespace

// The other rank follows when the first has handed out all: no hook launches anything then. Nor
// does one find anything done of the step before, since each step waits for its last sum: they are
// done in order. Two lists of what is handed out take turns, and each grows once to hold as many
// buckets as one thread ever finds in it, in whichever step that is.
TEST_CASE("device hook: a bucket costs one call of the driver and no allocation") {
  constexpr int kSteps = 40, kUncounted = 2, kBuckets = 8, kGrowing = 2 * 4;
  CountedBackend backends[] = {CountedBackend(0), CountedBackend(1)};
  std::atomic<int> handed_out{0};
  std::vector<Costs> steps;
  run_engines(2, [&](int rank, Engine& engine) {
    engine.use_device(backends[rank]);
    ProgramStream stream(rank);
    const auto list = engine.make_bucket_list(list_of({rank, engine, stream}, kBuckets));
    for (int step = 1; step <= kSteps; ++step) {
      if (rank == 1) comes_about([&] { return handed_out == step; });
      const Costs before = costs_now();
      for (int bucket = 0; bucket < kBuckets; ++bucket)
        list->ready(bucket, BucketList::Home::kHome, stream.get());
      if (rank == 0) {
        if (step > kUncounted) steps.push_back(costs_now().since(before));
        handed_out = step;
      }
      list->finish({});
      DeviceTensor last(rank, stream, 1, 1);
      const std::shared_ptr<Work> work = last.sum_async(engine, "last");
      comes_about([&] { return work->done(); });
    }
  });
  long allocations = 0;
  for (const Costs& step : steps) {
    CHECK(step.records == kBuckets);
    CHECK(step.events == 0);
    allocations += step.allocations;
  }
  CHECK(allocations <= kGrowing);  // one in each step would be over
}
