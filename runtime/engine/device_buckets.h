// The buckets of a list that lie on a device: memory of its own kind, and each bucket a submission
// of the log, since on a device there is one order for all that ranks exchange.
//
// Homes lie one behind the other in one piece, which is registered with the communicator, on all
// ranks or none; spares never are. In one operation all ranks have to use the same registered
// memory or none, so a rank that is in a bucket's spare is *apart*: the log tells all of them, and
// those that are at home go through other memory that time.
//
// They are summed as they are: whatever writes gradients there multiplies them, too, once for all
// (factor()). NCCL would do that for nothing, but not where memory is registered as a window, and
// in 16-bit types with a factor of as few bits.
//
// Host and device go each at its own pace: a bucket's next submission may follow while the one
// before is still under way there, so each has its own pair of events. Of submissions a bucket
// keeps as many as it ever needed at a time, to be made again: a hook makes none, and allocates
// nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/device_backend.h"
#include "runtime/engine/bucket_list.h"
#include "runtime/engine/negotiation.h"

namespace hvd {

class DeviceBuckets {
 public:
  using Home = BucketList::Home;

  // Throws kUnavailable, naming the bucket, when the device has no room. Device and `spec` outlive
  // it. `number` is the list's own, and the same on all ranks: lists may have one name.
  DeviceBuckets(DeviceBackend& device, const std::shared_ptr<Negotiation>& negotiation,
                const BucketListSpec& spec, uint32_t number, int ranks);

  DeviceBackend& device() const { return device_; }
  double factor() const { return factor_; }
  std::byte* memory(int bucket, Home home) const { return of(bucket, home).get(); }
  std::shared_ptr<const void> holder(int bucket, Home home) const { return of(bucket, home); }
  void take_spare(int bucket);
  // Collective of the init threads, once: on all ranks or, where one cannot, on none.
  void register_homes(const std::shared_ptr<Engine::Parts>& parts);

  // One thread at a time for one bucket.
  void submit(int bucket, Home home, void* stream);
  // Until all are launched; throws what went wrong.
  void wait() const;
  void join(void* stream) const;
  int done() const;  // from the first one on
  // Before the next step: of this one nothing is looked at any more.
  void reset();

 private:
  // What a submission holds.
  struct Held {
    Held(DeviceBackend& device, std::shared_ptr<std::byte> data, std::shared_ptr<std::byte> other)
        : events(device), memory(std::move(data)), aside(std::move(other)) {}
    const DeviceEvents events;
    const std::shared_ptr<std::byte> memory, aside;
  };
  struct Made {
    std::shared_ptr<Held> held;
    std::shared_ptr<RepeatedWork> work;
  };
  struct Bucket {
    std::string name;
    std::shared_ptr<std::byte> memory[2];  // by Home
    std::vector<Made> made[2];             // under way, or free
    Made last;
    std::shared_ptr<Work> work;  // of this step
  };
  const std::shared_ptr<std::byte>& of(int bucket, Home home) const {
    return buckets_[static_cast<size_t>(bucket)].memory[static_cast<size_t>(home)];
  }
  template <class Allocate>
  std::shared_ptr<std::byte> with_room(const Allocate& allocate) const;
  template <class Allocate>
  std::shared_ptr<std::byte> named_of(size_t first, size_t count, const Allocate& allocate) const;
  size_t bytes_of(int bucket) const;
  std::string name_of(int bucket) const;
  std::unique_ptr<Submission> describe(int bucket, Home home,
                                       const std::shared_ptr<Held>& held) const;

  DeviceBackend& device_;
  const std::weak_ptr<Negotiation> negotiation_;
  const BucketListSpec& spec_;
  const uint32_t number_;
  const double factor_;
  std::vector<Bucket> buckets_;
  std::shared_ptr<std::byte> homes_;  // of all buckets: held by each, and registered as one
  size_t homes_bytes_ = 0;            // the same on all ranks
  // For the largest bucket; null: homes are not registered. On the device one comes after the
  // other.
  std::shared_ptr<std::byte> aside_;
};

}  // namespace hvd
