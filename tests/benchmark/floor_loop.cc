// The floor of an in-place allreduce: every rank multiplies its own bytes by a factor, in place.
//
// An allreduce of N bytes among p ranks has to read p·N and write p·N bytes; this loop does just
// that and moves nothing between ranks but a barrier. Ranks are threads: the traffic is the same.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/benchmark/collective_rows.h"

namespace {

struct alignas(128) Counter {  // two lines: processors fetch them in pairs
  std::atomic<uint32_t> value{0};
};

// What the ranks share. Each writes only its own counter and its own values.
struct Meeting {
  explicit Meeting(size_t size)
      : counters(size), values(size), spins(size <= std::thread::hardware_concurrency()) {}
  std::vector<Counter> counters;
  std::vector<std::span<double>> values;
  const bool spins;  // else ranks share CPUs and let each other run
};

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void scale(float* data, size_t count, float factor) {
  for (size_t i = 0; i < count; ++i) data[i] *= factor;
}

class Floor final : public hvd::Library {
 public:
  Floor(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(meeting_.counters.size()); }
  bool has_result() const override { return false; }

  std::byte* memory(size_t bytes) override {
    memory_ = hvd::PrivateMemory(bytes);
    return memory_.data();
  }

  void barrier() override {
    const uint32_t mine = ++meetings_;
    meeting_.counters[static_cast<size_t>(rank_)].value.store(mine, std::memory_order_release);
    for (Counter& counter : meeting_.counters)
      while (static_cast<int32_t>(counter.value.load(std::memory_order_acquire) - mine) < 0)
        meeting_.spins ? pause() : std::this_thread::yield();
  }

  const std::byte* run(std::byte* data, size_t bytes) override {
    barrier();
    scale(reinterpret_cast<float*>(data), bytes / sizeof(float), factor_);
    barrier();
    return data;
  }

  void maximum(std::span<double> values) override {
    meeting_.values[static_cast<size_t>(rank_)] = values;
    barrier();
    std::vector<double> most(values.size(), 0);
    for (const auto& theirs : meeting_.values)
      for (size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], theirs[i]);
    barrier();  // all have read
    std::ranges::copy(most, values.begin());
    barrier();
  }

 private:
  Meeting& meeting_;
  const int rank_;
  const float factor_ = 1.0000001F;
  uint32_t meetings_ = 0;
  hvd::PrivateMemory memory_;
};

}  // namespace

int main(int argc, char** argv) {
  int size = 0;
  if (argc >= 3 && std::strcmp(argv[1], "-np") == 0) size = std::atoi(argv[2]);
  if (size < 1 || size > 1024)
    return std::fputs("usage: floor_loop -np N [options, see -np 1 --help]\n", stderr), 2;
  argv[2] = argv[0];
  const char* const memories[] = {"private"};
  try {
    hvd::RowsRequest request;
    const std::span<char* const> arguments(argv + 2, static_cast<size_t>(argc - 2));
    if (!hvd::parse_rows_request(arguments, memories, request)) return 0;
    Meeting meeting(static_cast<size_t>(size));
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < size; ++rank)
      ranks.emplace_back([&, rank] {
        Floor floor(meeting, rank);
        hvd::measure_rows(floor, request);
      });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "floor_loop: %s\n", error.what());
    return 2;
  }
}
