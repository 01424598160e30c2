// What the stand-ins of CUDA and of NCCL share: settings, counts, violations, threads.
#pragma once

#include <functional>
#include <string>

// Seen by the other stand-in's library, and by none of the product's.
#define HVD_STANDIN_API __attribute__((visibility("default")))

namespace hvd {

// See tests/collectives/nccl/standin.h.
HVD_STANDIN_API std::string setting(const std::string& name);  // empty: not set
HVD_STANDIN_API long long setting(const std::string& name, long long otherwise);

HVD_STANDIN_API void count(const std::string& name, int device, long long amount = 1);

// Notes a broken rule, or ends the process.
HVD_STANDIN_API void violate(const std::string& text);
HVD_STANDIN_API void note_mismatch(const std::string& text);

// 0 … bound - 1, from the seed.
HVD_STANDIN_API long long random_below(long long bound);
// Lets time pass for work that is slow.
HVD_STANDIN_API void pass_time(long long us);

// Runs `job` on a thread that has nothing else to do. These threads live as long as the process.
HVD_STANDIN_API void run_in_background(std::function<void()> job);

}  // namespace hvd
