// The buckets of one optimizer, reduced in layout order every step without any negotiation.
//
// A bucket is issued when it is ready here and its predecessor has been issued; the last one of a
// step only by finish(), followed by one control word per rank: the rank's last word about the
// step, read before anybody uses a result. Threads: ready() from any thread; finish() by one thread
// at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/types.h"

namespace hvd {

class DeviceBackend;

struct BucketShape {
  DataType type = DataType::kFloat32;
  size_t count = 0;  // elements, padding included
};

struct BucketListSpec {
  std::string name;                  // of the optimizer, for errors: the same on all ranks
  std::string about = {};            // said behind it once the layouts are known to agree
  std::vector<BucketShape> buckets;  // in layout order
  int parameters = 0;                // over all buckets
  // What has to agree on all ranks, in words: a line of settings, then one for each parameter.
  std::string layout;
  Reduction reduction;
  int device = -1;  // the buckets lie there; -1: in memory of the arena
  // Before it is an error that the device has no room: makes some, in whichever thread that was.
  std::function<void()> make_room = {};
};

// What this rank says at the end of a step, and what all said together.
struct StepWord {
  std::string poison;          // not empty: the step is void on every rank, and why
  uint32_t additions = 0;      // parameters that this rank wants to add
  uint32_t digest = 0;         // of the last step's results as they were taken here; 0: none
  std::vector<uint64_t> used;  // bit per parameter that has a gradient here
};
struct StepVerdict {
  std::string poison;               // of the lowest poisoned rank, with its number
  std::vector<uint32_t> additions;  // by rank
  // Two ranks whose digests differ, the lowest such and the first of the others; -1: none do.
  int digest_of = -1, another_of = -1;
  std::vector<uint64_t> used;  // bit per parameter that has a gradient anywhere
};

class BucketList {
 public:
  // Where a rank's bucket lies this step. The spare costs address space only until its first use.
  enum class Home : uint8_t { kHome, kSpare };

  virtual ~BucketList() = default;
  // A spare's: once it was taken.
  virtual std::byte* memory(int bucket, Home home) const = 0;
  // Of that memory: keep it while a tensor points there.
  virtual std::shared_ptr<const void> holder(int bucket, Home home) const = 0;
  // No step can be made with it any more: after shutdown(), once a broken epoch is over, and in a
  // forked child, where nothing of it is mapped. Any thread; takes no lock.
  virtual bool ended() const = 0;
  // Throws why, kUnavailable or, once any call of this rank has thrown it, the CommFailure of the
  // broken epoch: before that, only ranks that ask at that moment would hear it here, and not where
  // others do.
  virtual void check_open() const = 0;

  // To be asked before the bucket's spare is used: takes its memory the first time. False: there is
  // no room, the epoch breaks, and nothing may be written there; the bucket is not ready then, and
  // finish() says why. Any thread, for one bucket one at a time.
  virtual bool take_spare(int bucket) = 0;
  // What gradients are multiplied with before their bucket is ready: 1 where the sum does that.
  virtual double factor() const { return 1; }
  // On a device: once what is in `stream` by now has been done.
  virtual void ready(int bucket, Home home, void* stream = nullptr) = 0;
  // All buckets are ready, or there was no room. Blocks until all results lie in all buckets and
  // all words are read. Throws CommFailure. On a device results lie there for who has called
  // join(): what comes into that stream afterwards.
  virtual StepVerdict finish(const StepWord& word) = 0;
  virtual void join(void* /*stream*/) {}
  // On which the buckets lie; null: in memory of the arena.
  virtual DeviceBackend* device() const { return nullptr; }

  virtual uint64_t step() const = 0;         // finish() calls that returned
  virtual int finished_buckets() const = 0;  // of the step under way, complete on all ranks
};

}  // namespace hvd
