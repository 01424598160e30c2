// Buckets on a rank's GPU, as an optimizer has them: registered with NCCL where that can be.
#pragma once

#include "tests/gpu_check/device_rank.h"

namespace hvd {

// The same on all ranks: so many buckets, each of so many floats, which are summed.
BucketListSpec bucket_list_on(const DeviceRank& rank, int buckets, size_t count);

// Steps of such a list, in which each element's sum is known.
class BucketSteps {
 public:
  explicit BucketSteps(DeviceRank& rank);
  // Makes one. All ranks. Throws what finish() of the list does.
  bool is_right(int step);

 private:
  DeviceRank& rank_;
  const std::unique_ptr<BucketList> list_;
};

}  // namespace hvd
