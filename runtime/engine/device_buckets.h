// The buckets of a list that lie on a device: memory of its own kind, and each bucket a submission
// of the log, since on a device there is one order for all that ranks exchange.
//
// Host and device go each at its own pace: a bucket's next submission may follow while the one
// before is still under way there, so each has its own pair of events.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
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
                const BucketListSpec& spec, uint32_t number);

  std::byte* memory(int bucket, Home home) const { return of(bucket, home).get(); }
  std::shared_ptr<const void> holder(int bucket, Home home) const { return of(bucket, home); }
  void take_spare(int bucket);

  // One thread at a time for one bucket.
  void submit(int bucket, Home home, void* stream);
  // Until all are launched; throws what went wrong.
  void wait() const;
  void join(void* stream) const;
  int done() const;  // from the first one on
  // Before the next step: of this one nothing is looked at any more.
  void reset();

 private:
  struct Bucket {
    std::shared_ptr<std::byte> memory[2];  // by Home
    std::shared_ptr<DeviceEvents> events;
    std::shared_ptr<Work> work;
  };
  // What a submission holds.
  struct InFlight {
    std::shared_ptr<DeviceEvents> events;
    std::shared_ptr<std::byte> memory;
  };
  const std::shared_ptr<std::byte>& of(int bucket, Home home) const {
    return buckets_[static_cast<size_t>(bucket)].memory[static_cast<size_t>(home)];
  }
  std::shared_ptr<std::byte> allocate(int bucket) const;
  std::string name_of(int bucket) const;

  DeviceBackend& device_;
  const std::weak_ptr<Negotiation> negotiation_;
  const BucketListSpec& spec_;
  const uint32_t number_;
  std::vector<Bucket> buckets_;
};

}  // namespace hvd
