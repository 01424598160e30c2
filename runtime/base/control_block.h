// The words that the ranks of one host share for one epoch, written by ranks and agent; both
// programs include this layout.
//
// Each word has one writer, named below (`trouble` and `reason`: anyone), and only grows. The words
// of a dead rank no longer move, so what one survivor decides from them every survivor decides. A
// communicator's own words (entries, done, closed) lie in a segment made with it, not here; but a
// change of their layout or meaning is a new version of this block, too, by which ranks of one job
// whose libraries differ are refused.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace hvd {

inline constexpr int kLocalRanksMax = 1024;
inline constexpr int kWorldSizeMax = 1 << 20;

// Who of a rank may sleep on a doorbell; bit numbers of RankWords::asleep.
enum Sleeper : uint32_t { kCaller = 0, kEngineThread = 1 };
inline constexpr int kSleepers = 2;
// And a bit behind theirs: a thread of it waits, and has slept since it began to.
inline constexpr uint32_t kWaitsBit = 1u << kSleepers;

enum class TroubleReason : uint32_t {
  kNone,
  kDeath,
  kAbort,
  kTimeout,
  kEngineError,
  kLostSocket,
  kLeft,
  kLostLink,
  kElsewhere,  // on another host: ControlBlock::elsewhere says what
  kEnded       // by exit status 0, which is no death; its agent writes the rank's reason
};

// What there is to say of a rank that got no further in a broken epoch: it did not answer its
// agent, or it could not abort what its GPU does (kAborts).
enum class GivenUp : uint32_t { kNo, kSilent, kStopped, kAborts };

struct alignas(64) RankWords {
  std::atomic<uint32_t> asleep;  // by the rank: bit per Sleeper that wants its doorbell rung, and
                                 // kWaitsBit
  std::atomic<uint32_t> cpu;     // by the rank when it has waited for a while: 1 + the CPU it is on
  alignas(64) std::atomic<uint32_t> dead;  // by the agent: no task of it runs any more
  std::atomic<GivenUp> given_up;           // by the agent, before it kills the rank; kAborts by the
                                           // rank, before it ends
  alignas(64) std::atomic<uint32_t> seen;  // by the rank, from inside its progress: the trouble
                                           // count it has acted on
  std::atomic<uint32_t> quiet;  // by the rank: it touches no memory of this epoch any more
  std::atomic<uint32_t> left;   // by the rank: shutdown() was called
  std::atomic<uint64_t> proof;  // by the rank: what it has stored into every rank's memory, to be
                                // found there by each (collectives/memory_proof.h)
  pthread_mutex_t life;  // robust, process-shared, held by the rank's engine thread: the kernel
                         // marks its end early
  char reason[256];      // by the rank before it raises trouble, or by the agent (kEnded): why;
                         // zero-terminated
};

// What agents have told each other of a rank on another host; by the agent of this host. Those of
// local ranks stay 0: their own words say it.
struct alignas(8) FateWords {
  std::atomic<uint32_t> dead;
  uint32_t host_first, host_ranks;  // of local ranks too: the first rank of its host, and how many
                                    // there are. Constant
};

struct ControlBlock {
  static constexpr uint32_t kMagic = 0x68766442;  // "hvdB"
  static constexpr uint32_t kVersion = 16;

  uint32_t magic;
  uint32_t version;
  uint32_t epoch;
  uint32_t local_size;
  uint32_t world_size;
  uint32_t machine_ranks;  // that share its CPUs; of several hosts, where a machine is several
  alignas(64) std::atomic<uint32_t> trouble;  // deaths, aborts, the agent's questions; != 0: the
                                              // epoch is broken. Only fetch_add
  std::atomic<uint32_t> reason;  // the first one: TroubleReason | local rank << 8, set once by
                                 // compare-exchange from 0. The agent gives local rank 0 for
                                 // what broke elsewhere
  std::atomic<int64_t> clock;    // by the agent: JobClock's word
  char elsewhere[256];           // by the agent before it gives kElsewhere; zero-terminated

  RankWords* ranks() { return reinterpret_cast<RankWords*>(this + 1); }
  RankWords& rank(int local_rank) { return ranks()[local_rank]; }
  // By rank of the world.
  FateWords& fate(int rank) { return reinterpret_cast<FateWords*>(ranks() + local_size)[rank]; }
  // A bit of `missed`, by the local rank with its `reason`: this rank of the world is to blame.
  void miss(int local_rank, int rank) {
    missed(local_rank, rank).fetch_or(uint64_t{1} << rank % 64, std::memory_order_release);
  }
  bool misses(int local_rank, int rank) {
    return (missed(local_rank, rank).load(std::memory_order_acquire) >> rank % 64 & 1) != 0;
  }
  static size_t bytes(int local_size, int world_size) {
    return sizeof(ControlBlock) + sizeof(RankWords) * static_cast<size_t>(local_size) +
           sizeof(FateWords) * static_cast<size_t>(world_size) +
           sizeof(uint64_t) * static_cast<size_t>(local_size) * missed_words(world_size);
  }

 private:
  static size_t missed_words(int world_size) { return (static_cast<size_t>(world_size) + 63) / 64; }
  std::atomic<uint64_t>& missed(int local_rank, int rank) {
    const int all = static_cast<int>(world_size);
    auto* words = reinterpret_cast<std::atomic<uint64_t>*>(&fate(0) + all);
    return words[static_cast<size_t>(local_rank) * missed_words(all) +
                 static_cast<size_t>(rank) / 64];
  }
};

// What the survivors and the report say of it, behind why the epoch is broken; nothing of kNo.
inline std::string given_up_text(int rank, GivenUp given_up) {
  if (given_up == GivenUp::kNo) return "";
  if (given_up == GivenUp::kAborts)
    return "; rank " + std::to_string(rank) + " could not end its abort of NCCL, and ended itself";
  return "; rank " + std::to_string(rank) +
         (given_up == GivenUp::kStopped ? " was stopped" : " did not answer") +
         " and was given up on";
}

static_assert(sizeof(ControlBlock) % 64 == 0 && sizeof(RankWords) % 64 == 0 &&
              sizeof(FateWords) % sizeof(uint64_t) == 0);
static_assert(std::atomic<uint32_t>::is_always_lock_free &&
              std::atomic<uint64_t>::is_always_lock_free);

}  // namespace hvd
