// What the strides of a tensor say of its memory. Pure, and without LibTorch.
#pragma once

#include <cstdint>
#include <span>

namespace hvd {

// False: no two elements share memory. True where some do, but also where each dimension by itself
// cannot rule it out, as in sizes [3, 2] with strides [2, 3].
bool may_overlap(std::span<const int64_t> sizes, std::span<const int64_t> strides);

// Whether both have each element at the same place. Strides of dimensions of size 1 say nothing;
// autograd chooses them freely.
bool same_strides(std::span<const int64_t> sizes, std::span<const int64_t> a,
                  std::span<const int64_t> b);

}  // namespace hvd
