// Bucket planning and the words that ranks compare.
#include "runtime/torch/layout.h"

#include <map>

namespace hvd {
namespace {

constexpr size_t kCacheLineBytes = 64;

size_t padded_count(const GradientShape& gradient) {
  const size_t line = kCacheLineBytes / size_of(gradient.type);
  return (gradient.count() + line - 1) / line * line;
}

std::string list(std::span<const int64_t> values) {
  std::string text = "[";
  for (const int64_t value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
  return text + "]";
}

bool is_row_major(const GradientShape& gradient) {
  if (gradient.strides.empty() || gradient.count() == 0) return true;
  int64_t stride = 1;
  for (size_t d = gradient.sizes.size(); d-- > 0; stride *= gradient.sizes[d])
    if (gradient.sizes[d] != 1 && gradient.strides[d] != stride) return false;
  return true;
}

std::vector<int64_t> telling_strides(const GradientShape& gradient) {
  std::vector<int64_t> strides = gradient.strides;
  for (size_t d = 0; d < strides.size(); ++d)
    if (gradient.sizes[d] == 1) strides[d] = 1;
  return strides;
}

}  // namespace

size_t GradientShape::count() const {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return static_cast<size_t>(count);
}

Layout plan_buckets(std::span<const GradientShape> gradients, size_t bucket_bytes) {
  Layout layout;
  layout.placements.resize(gradients.size());
  std::map<DataType, int> open;
  for (size_t i = gradients.size(); i-- > 0;) {
    const GradientShape& gradient = gradients[i];
    const size_t count = padded_count(gradient);
    auto found = open.find(gradient.type);
    if (found != open.end()) {
      const size_t elements = layout.buckets[static_cast<size_t>(found->second)].count + count;
      if (elements * size_of(gradient.type) > bucket_bytes) found = (open.erase(found), open.end());
    }
    if (found == open.end()) {
      found = open.emplace(gradient.type, static_cast<int>(layout.buckets.size())).first;
      layout.buckets.push_back({gradient.type, 0});
    }
    BucketShape& bucket = layout.buckets[static_cast<size_t>(found->second)];
    layout.placements[i] = {found->second, bucket.count};
    bucket.count += count;
  }
  return layout;
}

std::string describe_layout(std::span<const GradientShape> gradients, const std::string& settings) {
  std::string text = settings;
  for (const GradientShape& gradient : gradients) {
    text += "\n" + gradient.name + " " + name_of(gradient.type) + " " + list(gradient.sizes);
    if (!is_row_major(gradient)) text += " with strides " + list(telling_strides(gradient));
  }
  return text;
}

}  // namespace hvd
