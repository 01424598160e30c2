// A rank as a program has it, linked with libhvd.so, whose tensors lie on a GPU; what gpu_check and
// an end-to-end test start.
//
//   device_worker sums ROUNDS [ORDINAL]  0: until it is ended. On that GPU, else the local rank's.
//                                        When another rank's end breaks the epoch it says the time
//   device_worker steps                  the same of buckets, as an optimizer has them, without end
//   device_worker abort ROUND            sums, until the last rank breaks the epoch in that one
//   device_worker values                 all collectives beside what the CPU computes
//   device_worker times                  what a bucket and a launch cost the host
//   device_worker overlap MIB            a sum beside compute, copies of so much at a time
//   device_worker bandwidth SUMS MIB...  so many sums of so much each
//   device_worker describe               no rank: the GPU and libraries that one would use
//
// Exit status: 1 a wrong sum, 2 usage, 3 what stderr says, 4 there is no GPU.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "collectives/nccl/nccl_backend.h"
#include "hvd/hvd.h"
#include "tests/gpu_check/device_bandwidth.h"
#include "tests/gpu_check/device_buckets.h"
#include "tests/gpu_check/device_overlap.h"
#include "tests/gpu_check/device_times.h"
#include "tests/gpu_check/device_values.h"

namespace {

constexpr size_t kCount = 10'000;

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

// Ranks that outnumber the GPUs share them.
int local_gpu() {
  const hvd::CudaDriver driver = hvd::CudaDriver::load(hvd::cuda_library());
  int count = 0;
  driver.check(driver.cuDeviceGetCount(&count), "GPUs cannot be counted");
  return hvd::local_rank() % std::max(count, 1);
}

// Every other rank may still be at the round before.
bool sum_is_right(hvd::DeviceRank& rank, const std::shared_ptr<std::byte>& memory, int round) {
  std::vector<float> values(kCount, static_cast<float>(round + hvd::rank()));
  rank.write(memory.get(), values.data(), kCount * sizeof(float));
  rank.run(hvd::make_sum("sum", memory, kCount));
  rank.read(values.data(), memory.get(), kCount * sizeof(float));
  const auto size = static_cast<float>(hvd::size());
  const float wanted = size * static_cast<float>(round) + size * (size - 1) / 2;
  return std::ranges::all_of(values, [&](float value) { return value == wanted; });
}

// By the machine's clock, which who ends a rank reads, too.
std::string failure_time() {
  const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
  return "failure at " + std::to_string(now.count()) + " s\n";
}

// `rounds` 0: until it is ended. In round `abort`, -1: never, the last rank breaks the epoch.
template <class IsRight>
int run_rounds(hvd::DeviceRank& rank, int rounds, int abort, IsRight is_right) try {
  for (int round = 0; rounds == 0 || round < rounds; ++round) {
    if (round == abort && hvd::rank() == hvd::size() - 1) rank.engine().abort("the check ends it");
    if (!is_right(round)) {
      print("wrong sum in round " + std::to_string(round) + "\n");
      return 1;
    }
    if (round == 0) print(rank.backend().description() + "\n");
  }
  return 0;
} catch (const hvd::CommFailure&) {
  print(failure_time());
  throw;
}

int sum_in_rounds(hvd::DeviceRank& rank, int rounds, int abort) {
  const std::shared_ptr<std::byte> memory = rank.allocate(kCount * sizeof(float));
  return run_rounds(rank, rounds, abort,
                    [&](int round) { return sum_is_right(rank, memory, round); });
}

int step_without_end(hvd::DeviceRank& rank) {
  hvd::BucketSteps steps(rank);
  return run_rounds(rank, 0, -1, [&](int step) { return steps.is_right(step); });
}

// The file that a call was found in, whatever name it was looked for by.
template <class Call>
std::string file_of(Call* call) {
  Dl_info found{};
  return dladdr(reinterpret_cast<void*>(call), &found) == 0 ? "" : found.dli_fname;
}

bool is_stand_in(const std::string& file) {
  void (*set)(const char*, const char*) = nullptr;
  hvd::DynamicLibrary(file, "a library").find_if_there("hvd_standin_set", set);
  return set != nullptr;
}

// That of the first GPU: "0000:19:00.0".
std::string bus_address(const hvd::CudaDriver& driver) {
  CUdevice device = 0;
  char text[32] = "";
  driver.check(driver.cuDeviceGet(&device, 0), "GPU 0");
  driver.check(driver.cuDeviceGetPCIBusId(text, sizeof text, device), "GPU 0's address");
  return text;
}

int describe() {
  hvd::DeviceOptions options;
  options.cuda_library = hvd::cuda_library();
  if (const char* path = std::getenv("HVD_NCCL_LIBRARY")) options.nccl_library = path;
  int version = 0, count = 0;
  hvd::CudaDriver driver;
  try {
    driver = hvd::CudaDriver::load(options.cuda_library);
    driver.check(driver.cuDriverGetVersion(&version), "the CUDA driver does not tell its version");
    driver.check(driver.cuDeviceGetCount(&count), "GPUs cannot be counted");
    if (count == 0) throw hvd::Error(hvd::ErrorCode::kUnavailable, "the CUDA driver sees no GPU");
  } catch (const hvd::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 4;
  }
  const hvd::NcclBackend backend(options);
  const std::string cuda = file_of(driver.cuInit),
                    nccl = file_of(hvd::NcclLibrary::load(options.nccl_library).ncclGetVersion);
  const bool stand_ins = is_stand_in(cuda) || is_stand_in(nccl);
  print("device: " + backend.description() + "\nPCI: " + bus_address(driver) +
        "\nGPUs: " + std::to_string(count) + "\nCUDA: " + std::to_string(version / 1000) + "." +
        std::to_string(version % 1000 / 10) + "\ndriver library: " + cuda +
        "\nNCCL library: " + nccl + "\nstand-ins: " + (stand_ins ? "yes" : "no") + "\n");
  return 0;
}

size_t mebibytes(const char* word) {
  return static_cast<size_t>(std::max(std::atoi(word), 1)) << 20;
}

int run_as_rank(std::string_view mode, int argc, char** argv) {
  hvd::init();
  hvd::DeviceRank rank(mode == "sums" && argc > 3 ? std::atoi(argv[3]) : local_gpu());
  int status = 0;
  if (mode == "sums")
    status = sum_in_rounds(rank, std::atoi(argv[2]), -1);
  else if (mode == "abort")
    status = sum_in_rounds(rank, 0, std::atoi(argv[2]));
  else if (mode == "steps")
    status = step_without_end(rank);
  else if (mode == "values")
    print("right: " + std::to_string(hvd::check_values(rank)) + " collectives\n");
  else if (mode == "overlap")
    print(hvd::measure_overlap(rank, mebibytes(argv[2])));
  else if (mode == "bandwidth")
    for (int i = 3; i < argc; ++i)
      print(hvd::measure_bandwidth(rank, mebibytes(argv[i]), std::max(std::atoi(argv[2]), 1)));
  else if (const std::string times = hvd::measure_launches(rank); hvd::rank() == 0)
    print(times);
  hvd::shutdown();
  return status;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  const bool has_number =
      mode == "sums" || mode == "abort" || mode == "overlap" || mode == "bandwidth";
  if (!(has_number && argc > 2) && mode != "steps" && mode != "values" && mode != "times" &&
      mode != "describe") {
    std::fputs(
        "usage: device_worker sums ROUNDS [ORDINAL] | steps | abort ROUND | values | times | "
        "overlap MIB | bandwidth SUMS MIB... | describe\n",
        stderr);
    return 2;
  }
  return mode == "describe" ? describe() : run_as_rank(mode, argc, argv);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 3;
}
