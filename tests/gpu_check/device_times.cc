#include "tests/gpu_check/device_times.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "hvd/hvd.h"
#include "tests/gpu_check/device_buckets.h"

namespace hvd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kCount = 1 << 20;  // floats; the time of the host does not depend on it
constexpr int kUntimed = 5, kTimedMin = 20, kTimedMax = 100;
constexpr double kTimedSeconds = 5;
constexpr int kBuckets = 16;

class Times {
 public:
  void add(Clock::time_point begin, Clock::time_point end) {
    add(std::chrono::duration<double, std::micro>(end - begin).count());
  }
  void add(double us) { all_.push_back(us); }
  std::string median() {
    const auto middle = all_.begin() + static_cast<std::ptrdiff_t>(all_.size() / 2);
    std::nth_element(all_.begin(), middle, all_.end());
    return std::to_string(*middle);
  }
  size_t count() const { return all_.size(); }
  double mean() const {
    return std::accumulate(all_.begin(), all_.end(), 0.0) / static_cast<double>(all_.size());
  }

 private:
  std::vector<double> all_;
};

// Calls round(whether it is timed), on all ranks as often: less often where rounds take long, as
// where ranks share a GPU, on which every collective waits for the turns of all.
template <class Round>
void repeat(const Round& round) {
  for (int i = 0; i < kUntimed; ++i) round(false);
  const auto begin = Clock::now();
  for (int i = 0; i < kTimedMin; ++i) round(true);
  const std::chrono::duration<double> took = Clock::now() - begin;
  const double fit = kTimedSeconds / took.count() * kTimedMin;
  int more = static_cast<int>(std::clamp<double>(fit, kTimedMin, kTimedMax)) - kTimedMin;
  broadcast_(std::span(reinterpret_cast<uint8_t*>(&more), sizeof more), 0);
  for (int i = 0; i < more; ++i) round(true);
}

// All that a backward hook pays in this library for a bucket that is full. It has moved whatever
// could move, so that a launch, of an earlier bucket, is in it where nobody else was faster. Hooks
// come one behind the other here, without the backward pass between them that gives the engine's
// thread its time. A step has all of its launches, whichever hooks they are in, so what a bucket
// costs is a step's mean, and the median of those, of which what else the machine does is no part.
std::string bucket_times(DeviceRank& rank) {
  Times calls, steps;
  const auto list =
      rank.engine().make_bucket_list(bucket_list_on(rank, kBuckets, kCount / kBuckets));
  repeat([&](bool timed) {
    Times of_step;
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      const auto begin = Clock::now();
      list->ready(bucket, BucketList::Home::kHome, rank.stream());
      const auto end = Clock::now();
      of_step.add(begin, end);
      if (timed) calls.add(begin, end);
    }
    if (timed) steps.add(of_step.mean());
    list->finish({});
    list->join(rank.stream());
    float value = 0;
    rank.read(&value, list->memory(kBuckets - 1, BucketList::Home::kHome), sizeof value);
  });
  return "bucket: " + steps.median() + "\nbucket's median: " + calls.median() +
         "\nsteps: " + std::to_string(steps.count()) + "\n";
}

}  // namespace

// A synchronous sum is submitted by who waits for it then; from there until all ranks are known to
// have submitted, and NCCL's call has returned, the device has nothing of the bucket: the log's
// hop.
std::string measure_launches(DeviceRank& rank) {
  Times record, submit, hop;
  const std::shared_ptr<std::byte> memory = rank.allocate(kCount * sizeof(float));
  DeviceEvents bare(rank.backend());
  repeat([&](bool timed) {
    const auto events = std::make_shared<DeviceEvents>(rank.backend());
    auto submission = make_sum("bucket", memory, kCount);
    events->give_to(submission->operation);
    submission->keep_alive =
        std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(events, memory);
    const auto begin = Clock::now();
    bare.begin_behind(rank.stream());
    const auto recorded = Clock::now();
    events->begin_behind(rank.stream());
    const std::shared_ptr<Work> work = rank.engine().submit(std::move(submission));
    const auto submitted = Clock::now();
    work->wait();
    const auto launched = Clock::now();
    while (!work->done()) poll(nullptr, 0, 1);
    work->wait();
    if (!timed) return;
    record.add(begin, recorded);
    submit.add(recorded, submitted);
    hop.add(submitted, launched);
  });
  return "event record: " + record.median() + "\nsubmit: " + submit.median() +
         "\nlog's hop and launch: " + hop.median() + "\n" + bucket_times(rank);
}

}  // namespace hvd
