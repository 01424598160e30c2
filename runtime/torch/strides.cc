// From the narrowest stride to the widest: each has to step over all that lies below it.
#include "runtime/torch/strides.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace hvd {

bool may_overlap(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, steps
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return false;
    if (sizes[d] > 1) dimensions.emplace_back(strides[d], sizes[d] - 1);
  }
  std::ranges::sort(dimensions);
  int64_t reach = 0;  // of the dimensions so far, from the first element to the last
  for (const auto& [stride, steps] : dimensions) {
    if (stride <= reach) return true;
    reach += stride * steps;
  }
  return false;
}

bool same_strides(std::span<const int64_t> sizes, std::span<const int64_t> a,
                  std::span<const int64_t> b) {
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] != 1 && a[d] != b[d]) return false;
  return true;
}

}  // namespace hvd
