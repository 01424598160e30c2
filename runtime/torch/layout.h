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
  size_t count = 0;                    // elements
  DataType type = DataType::kFloat32;  // as it is exchanged
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

// Everything that has to agree between ranks, as one line for an error text and as its hash.
// `settings` says in words what else has to agree (reduction, bucket size).
struct LayoutIdentity {
  std::string text;  // cut after about a kilobyte; the hash covers all of it
  uint64_t hash = 0;
};
uint64_t hash_text(const std::string& text);  // never 0, which means "nothing" to the engine
LayoutIdentity identify(std::span<const GradientShape> gradients, const std::string& settings);

}  // namespace hvd
