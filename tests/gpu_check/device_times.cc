#include "tests/gpu_check/device_times.h"

#include <poll.h>

#include <algorithm>
#include <chrono>

namespace hvd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kCount = 1 << 20;  // floats; the time of the host does not depend on it
constexpr int kUntimed = 10, kTimed = 100;

class Times {
 public:
  void add(Clock::time_point begin, Clock::time_point end) {
    all_.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
  }
  std::string median() {
    const auto middle = all_.begin() + static_cast<std::ptrdiff_t>(all_.size() / 2);
    std::nth_element(all_.begin(), middle, all_.end());
    return std::to_string(*middle);
  }

 private:
  std::vector<double> all_;
};

}  // namespace

// Submitting is what a gradient's hook pays for; from there until all ranks are known to have
// submitted, and NCCL's call has returned, the device has nothing of the bucket: the log's hop.
std::string measure_launches(DeviceRank& rank) {
  Times record, submit, hop;
  const std::shared_ptr<std::byte> memory = rank.allocate(kCount * sizeof(float));
  DeviceEvents bare(rank.backend());
  for (int round = 0; round < kUntimed + kTimed; ++round) {
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
    if (round < kUntimed) continue;
    record.add(begin, recorded);
    submit.add(recorded, submitted);
    hop.add(submitted, launched);
  }
  return "event record: " + record.median() + "\nsubmit: " + submit.median() +
         "\nlog's hop and launch: " + hop.median() + "\n";
}

}  // namespace hvd
