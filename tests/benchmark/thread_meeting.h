// Ranks that are threads of one process meet, and compare numbers.
//
// Each writes only its own counter and its own values.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

namespace hvd {

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

class ThreadMeeting {
 public:
  explicit ThreadMeeting(int size)
      : counters_(static_cast<size_t>(size)),
        values_(static_cast<size_t>(size)),
        spins_(static_cast<unsigned>(size) <= std::thread::hardware_concurrency()) {}

  int size() const { return static_cast<int>(counters_.size()); }

  // Returns when all have called it equally often.
  void barrier(int rank) {
    Counter& mine = counters_[static_cast<size_t>(rank)];
    const uint32_t meetings = mine.value.load(std::memory_order_relaxed) + 1;
    mine.value.store(meetings, std::memory_order_release);
    for (Counter& counter : counters_)
      while (static_cast<int32_t>(counter.value.load(std::memory_order_acquire) - meetings) < 0)
        wait();
  }

  // Element-wise, on all ranks.
  void maximum(int rank, std::span<double> values) {
    values_[static_cast<size_t>(rank)] = values;
    barrier(rank);
    std::vector<double> most(values.size(), 0);
    for (const auto& theirs : values_)
      for (size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], theirs[i]);
    barrier(rank);  // all have read
    std::ranges::copy(most, values.begin());
    barrier(rank);
  }

  // Once in a loop that waits: ranks that share CPUs let each other run.
  void wait() const { spins_ ? pause_cpu() : std::this_thread::yield(); }

 private:
  struct alignas(128) Counter {  // two lines: processors fetch them in pairs
    std::atomic<uint32_t> value{0};
  };
  std::vector<Counter> counters_;
  std::vector<std::span<double>> values_;
  const bool spins_;
};

}  // namespace hvd
