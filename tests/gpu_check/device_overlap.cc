#include "tests/gpu_check/device_overlap.h"

#include <poll.h>

#include <algorithm>
#include <chrono>

#include "hvd/hvd.h"

// As <cuda.h> spells it.
#define HVD_TEXT(name) #name
#define HVD_NAME(call) HVD_TEXT(call)

namespace hvd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kCount = 1 << 16;  // floats
// Many times what a sum takes, also where processes take turns on a GPU; but fewer copies than the
// driver takes before it lets the host wait, about a thousand.
constexpr double kComputeMs = 1000;
constexpr int kTriedCopies = 8, kMostCopies = 500;

// With a time stamp, as the product's own have none. The device is current for as long as it lives,
// here and below.
class TimedEvent {
 public:
  explicit TimedEvent(const DeviceRank& rank) : rank_(rank) {
    const DynamicLibrary library(cuda_library().empty() ? "libcuda.so.1" : cuda_library(),
                                 "the CUDA driver");
    library.find_if_there(HVD_NAME(cuEventElapsedTime), elapsed_);
    // An older driver has its first name alone, which takes the same.
    if (elapsed_ == nullptr) library.find("cuEventElapsedTime", elapsed_);
    rank.driver().check(rank.driver().cuEventCreate(&event_, CU_EVENT_DEFAULT), "a timed event");
  }
  ~TimedEvent() { rank_.driver().cuEventDestroy(event_); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;

  void record(CUstream stream) const { rank_.device().record(event_, stream); }
  bool is_done() const { return rank_.device().is_done(event_); }
  void wait() const {
    while (!is_done()) poll(nullptr, 0, 1);
  }
  // Both have passed.
  double ms_since(const TimedEvent& earlier) const {
    float ms = 0;
    rank_.driver().check(elapsed_(&ms, earlier.event_, event_), "the time between two events");
    return static_cast<double>(ms);
  }

 private:
  const DeviceRank& rank_;
  CUevent event_ = nullptr;
  CUresult (*elapsed_)(float*, CUevent, CUevent) = nullptr;
};

// Copies from one half of its memory to the other, in a stream of the lowest priority.
class Compute {
 public:
  Compute(const DeviceRank& rank, size_t bytes)
      : rank_(rank), bytes_(bytes), memory_(rank.allocate(2 * bytes)) {
    int least = 0, greatest = 0;
    const CudaDriver& driver = rank.driver();
    driver.check(driver.cuCtxGetStreamPriorityRange(&least, &greatest), "stream priorities");
    driver.check(driver.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, least),
                 "a stream");
  }
  ~Compute() { rank_.driver().cuStreamDestroy(stream_); }
  Compute(const Compute&) = delete;
  Compute& operator=(const Compute&) = delete;

  // Puts so many copies into its stream, between two events.
  void launch(int copies, const TimedEvent& begin, const TimedEvent& end) const {
    const auto from = reinterpret_cast<CUdeviceptr>(memory_.get());
    begin.record(stream_);
    for (int i = 0; i < copies; ++i)
      rank_.driver().check(rank_.driver().cuMemcpyAsync(from + bytes_, from, bytes_, stream_),
                           "a copy of " + std::to_string(bytes_) + " bytes");
    end.record(stream_);
  }
  // How many take about `ms`.
  int copies_for(double ms) const {
    const TimedEvent begin(rank_), end(rank_);
    launch(kTriedCopies, begin, end);
    end.wait();
    const double one_ms = std::max(end.ms_since(begin) / kTriedCopies, 1e-3);
    return std::clamp(static_cast<int>(ms / one_ms), kTriedCopies, kMostCopies);
  }

 private:
  const DeviceRank& rank_;
  const size_t bytes_;
  const std::shared_ptr<std::byte> memory_;
  CUstream stream_ = nullptr;
};

}  // namespace

// The sum itself has events without time stamps, so those around it are in the stream that it
// begins behind and that then waits for it: it lies between them.
std::string measure_overlap(DeviceRank& rank, size_t bytes) {
  const CudaDevice::Current current(rank.device());
  const Compute compute(rank, bytes);
  const std::shared_ptr<std::byte> memory = rank.allocate(kCount * sizeof(float));
  rank.run(make_sum("first", memory, kCount));  // which connects the ranks
  const int copies = compute.copies_for(kComputeMs);
  const TimedEvent compute_begin(rank), compute_end(rank), sum_begin(rank), sum_end(rank);
  barrier();
  compute.launch(copies, compute_begin, compute_end);
  compute_begin.wait();
  const auto begin = Clock::now();
  sum_begin.record(rank.stream());
  const DeviceRank::Started sum = rank.start(make_sum("beside", memory, kCount));
  sum.work->wait();
  sum.events->join(rank.stream());
  sum_end.record(rank.stream());
  const double launched_ms =
      std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  const bool computing = !compute_end.is_done();
  DeviceRank::finish(sum);
  sum_end.wait();
  compute_end.wait();
  return "compute " + std::to_string(compute_end.ms_since(compute_begin)) + " ms; sum from " +
         std::to_string(sum_begin.ms_since(compute_begin)) + " to " +
         std::to_string(sum_end.ms_since(compute_begin)) + " ms; launched in " +
         std::to_string(launched_ms) + " ms; then " + (computing ? "computing" : "idle") + "\n";
}

}  // namespace hvd
