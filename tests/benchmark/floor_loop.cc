// The floor of an in-place allreduce: every rank multiplies its own bytes by a factor, in place.
//
// An allreduce of N bytes among p ranks has to read p·N and write p·N bytes; this loop does just
// that and moves nothing between ranks but a barrier. Ranks are threads: the traffic is the same.
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/benchmark/collective_rows.h"
#include "tests/benchmark/thread_meeting.h"

namespace {

#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void scale(float* data, size_t count, float factor) {
  for (size_t i = 0; i < count; ++i) data[i] *= factor;
}

class Floor final : public hvd::Library {
 public:
  Floor(hvd::ThreadMeeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return meeting_.size(); }
  bool has_result() const override { return false; }

  std::byte* memory(size_t bytes) override {
    memory_ = hvd::PrivateMemory(bytes);
    return memory_.data();
  }

  void barrier() override { meeting_.barrier(rank_); }

  const std::byte* run(std::byte* data, size_t bytes) override {
    barrier();
    scale(reinterpret_cast<float*>(data), bytes / sizeof(float), factor_);
    barrier();
    return data;
  }

  void maximum(std::span<double> values) override { meeting_.maximum(rank_, values); }

 private:
  hvd::ThreadMeeting& meeting_;
  const int rank_;
  const float factor_ = 1.0000001F;
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
    hvd::ThreadMeeting meeting(size);
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
