#include "tests/gpu_check/device_buckets.h"

#include <algorithm>

#include "hvd/hvd.h"

namespace hvd {
namespace {

constexpr int kBuckets = 4;
constexpr size_t kCount = 1 << 18;  // floats

}  // namespace

BucketListSpec bucket_list_on(const DeviceRank& rank, int buckets, size_t count) {
  BucketListSpec spec;
  spec.name = "buckets";
  spec.buckets.assign(static_cast<size_t>(buckets), {DataType::kFloat32, count});
  spec.parameters = buckets;
  spec.layout = std::to_string(buckets);
  spec.reduction.op = ReduceOp::kSum;
  spec.device = rank.backend().ordinal();
  return spec;
}

BucketSteps::BucketSteps(DeviceRank& rank)
    : rank_(rank), list_(rank.engine().make_bucket_list(bucket_list_on(rank, kBuckets, kCount))) {}

bool BucketSteps::is_right(int step) {
  constexpr auto kHome = BucketList::Home::kHome;
  for (int bucket = 0; bucket < kBuckets; ++bucket) {
    const std::vector<float> own(kCount, static_cast<float>(step + bucket + rank()));
    rank_.write(list_->memory(bucket, kHome), own.data(), kCount * sizeof(float));
    list_->ready(bucket, kHome, rank_.stream());
  }
  list_->finish({});
  list_->join(rank_.stream());
  std::vector<std::vector<float>> sums(kBuckets, std::vector<float>(kCount));
  for (int bucket = 0; bucket < kBuckets; ++bucket)
    rank_.read(sums[static_cast<size_t>(bucket)].data(), list_->memory(bucket, kHome),
               kCount * sizeof(float));
  // finish() does not wait for the device: where a rank dies while that sums, the rest of the sum
  // is aborted, and the next call says so.
  barrier();
  const auto ranks = static_cast<float>(size());
  float wanted = ranks * static_cast<float>(step) + ranks * (ranks - 1) / 2;
  for (const std::vector<float>& of_bucket : sums) {
    if (!std::ranges::all_of(of_bucket, [&](float sum) { return sum == wanted; })) return false;
    wanted += ranks;
  }
  return true;
}

}  // namespace hvd
