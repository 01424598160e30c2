// What a rank was doing last, readable by its agent after any death: one shared page per rank,
// written by the rank alone.
//
// The agent makes the memory, maps it first and passes it on joining; the rank writes with relaxed
// stores inside a sequence lock (odd while changing), so a reader can tell a torn record from a
// whole one.
#pragma once

#include <atomic>
#include <cstdint>

namespace hvd {

enum class Phase : uint32_t {
  kNone,         // the program never called hvd::init()
  kInit,         // inside init()
  kComputing,    // initialised, in no call of ours
  kCollective,   // inside, or waiting for, the operation below
  kSynchronize,  // inside DistributedOptimizer::synchronize() or step()
  kShutdown,     // inside shutdown()
  kLeft,         // after shutdown()
  kInitFailed,   // after init() has thrown
};

// Where the sequence of an operation comes from.
enum class Order : uint32_t {
  kProgram,  // calls of the thread that called hvd::init()
  kLog,      // named asynchronous operations; none (0) while ranks have yet to submit it
};

struct StatusPage {
  static constexpr uint32_t kMagic = 0x68766453;  // "hvdS"
  static constexpr uint32_t kVersion = 4;
  static constexpr int kNameBytes = 128;

  uint32_t magic;
  uint32_t version;
  std::atomic<uint32_t> lock;   // odd: being written
  std::atomic<uint32_t> phase;  // Phase
  std::atomic<uint32_t> epoch;
  std::atomic<uint32_t> order;              // Order
  std::atomic<uint64_t> sequence;           // of the operation, in its order
  std::atomic<uint64_t> bytes;              // of this rank's part; 0: it has no data
  std::atomic<uint64_t> step;               // the optimizer's last one, or the one in synchronize()
  std::atomic<int64_t> since_ns;            // CLOCK_MONOTONIC, when this phase began
  std::atomic<uint32_t> told;               // 1: a call since init() began has thrown that other
                                            // ranks are gone or did not come, or could not,
                                            // since the rank ended for that
  std::atomic<uint32_t> shown;              // what the rank's wish for an epoch says stands here:
                                            // so its agent knows that they share this memory
  std::atomic<char> operation[kNameBytes];  // "allreduce float32 [100] avg_loss", zero-terminated
};

static_assert(sizeof(StatusPage) <= 4096);

}  // namespace hvd
