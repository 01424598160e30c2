#include "tests/gpu_check/device_bandwidth.h"

#include <chrono>

#include "hvd/hvd.h"

namespace hvd {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kUntimed = 5;  // as all_reduce_perf by itself

void sum_in_turn(DeviceRank& rank, const std::shared_ptr<std::byte>& memory, size_t count,
                 int rounds) {
  std::vector<DeviceRank::Started> all;
  for (int i = 0; i < rounds; ++i)
    all.push_back(rank.start(make_sum("sum " + std::to_string(i), memory, count)));
  for (const DeviceRank::Started& one : all) DeviceRank::finish(one);
}

}  // namespace

std::string measure_bandwidth(DeviceRank& rank, size_t bytes, int sums) {
  const size_t count = bytes / sizeof(float);
  const std::shared_ptr<std::byte> memory = rank.allocate(bytes);
  {
    const CudaDevice::Current current(rank.device());
    rank.driver().check(rank.driver().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(memory.get()),
                                                      0, bytes, rank.stream()),
                        "zeros");
  }
  sum_in_turn(rank, memory, count, kUntimed);
  barrier();
  const auto begin = Clock::now();
  sum_in_turn(rank, memory, count, sums);
  const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  return std::to_string(bytes) + ": " + std::to_string(us / sums) + "\n";
}

}  // namespace hvd
