// Which gradient lies where: buckets in reverse registration order, one element type each.
//
// Pure, and without LibTorch. Backward produces gradients roughly in reverse order, so the first
// bucket is complete first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/bucket_list.h"

namespace hvd {

struct GradientShape {
  std::string name;
  std::vector<int64_t> sizes;
  DataType type = DataType::kFloat32;  // as it is exchanged
  std::vector<int64_t> strides = {};   // of its place in the bucket; empty: row-major

  size_t count() const;  // elements
};

struct Placement {
  int bucket = 0;
  size_t offset = 0;  // elements from the bucket's start; begins a cache line
};

struct Layout {
  std::vector<BucketShape> buckets;
  std::vector<Placement> placements;  // in the order of the gradients given
};

// A bucket closes when another gradient would take it past `bucket_bytes`; a larger gradient has a
// bucket of its own.
Layout plan_buckets(std::span<const GradientShape> gradients, size_t bucket_bytes);

// What has to agree between ranks, as BucketListSpec::layout. Memory is summed as it lies, so that
// strides that are not row-major are part of it, but for those of dimensions of size 1, which say
// nothing. `settings` says
// in words what else has to agree (reduction, bucket size).
std::string describe_layout(std::span<const GradientShape> gradients, const std::string& settings);

}  // namespace hvd
