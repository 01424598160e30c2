// Steps of bucket lists in registered memory, over the oldest NCCL whose windows are used, and what
// they cost.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <vector>

#include "tests/collectives/nccl/engine_devices.h"
#include "tests/collectives/nccl/standin.h"

namespace hvd {

using Home = BucketList::Home;

constexpr int kBuckets = 3;
constexpr size_t kBucketBytes = 12'000, kHomesBytes = kBuckets * 12'032;  // in steps of 256

struct Counts {
  long long collectives, symmetric, registered, copies;
  bool operator==(const Counts&) const = default;
};

Counts counts();  // of all ranks
std::ostream& operator<<(std::ostream& out, const Counts& c);

// Of all ranks, between two calls of next(), which all of them make.
class StepCounts {
 public:
  explicit StepCounts(int ranks) : ranks_(ranks) {}

  // All ranks' work of a step is on their devices: what has been counted since the last step.
  void next(const DeviceRank& r);
  // A step whose collectives are all of this kind.
  Counts plain(long long copies = 0) const { return {ranks_ * kBuckets, 0, 0, copies}; }
  Counts local() const { return {ranks_ * kBuckets, 0, ranks_ * kBuckets, 0}; }
  Counts symmetric() const { return {ranks_ * kBuckets, ranks_ * kBuckets, ranks_ * kBuckets, 0}; }

  std::vector<Counts> steps;  // the first one is what was before

 private:
  const long long ranks_;
  Counts last_{};
};

// One step of a list: returns how many values are wrong.
int step(const DeviceRank& r, BucketList& list, Home home, int number);
BucketListSpec averages_of(const DeviceRank& r, DataType type);

// Steps with each rank's choice of its place; the counts of each.
std::vector<Counts> run_steps(const Hosts& hosts, StepCounts& seen, int steps,
                              const std::function<Home(int rank, int step)>& home_of);
std::vector<Counts> run_steps_with_a_spare(StepCounts& seen);

// A rank each, where registering is taken for a failure after so long. `last`: the architecture of
// the last one.
struct Backends {
  explicit Backends(std::chrono::milliseconds most = std::chrono::milliseconds(200),
                    const char* last = nullptr) {
    const NcclLimits limits{.registering = most};
    for (int rank = 0; rank < 3; ++rank) {
      const Setting architecture("architecture", rank == 2 ? last : nullptr);
      of[static_cast<size_t>(rank)] = make_standin_backend(rank, limits);
    }
  }
  std::array<std::unique_ptr<DeviceBackend>, 3> of;
};

// What all ranks' engines say to the user.
class Warnings {
 public:
  EngineOptions heard() {
    EngineOptions options;
    options.warn = [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      texts_.push_back(text);
    };
    return options;
  }
  std::vector<std::string> texts() const {
    const std::lock_guard lock(mutex_);
    return texts_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;
};

}  // namespace hvd
