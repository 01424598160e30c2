// Bucket planning and the text that ranks compare.
#include "runtime/torch/layout.h"

#include <map>

namespace hvd {
namespace {

constexpr size_t kCacheLineBytes = 64;
constexpr size_t kTextBytesMax = 1024;

size_t padded_count(const GradientShape& gradient) {
  const size_t line = kCacheLineBytes / size_of(gradient.type);
  return (gradient.count + line - 1) / line * line;
}

}  // namespace

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

// FNV-1a.
uint64_t hash_text(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash == 0 ? 1 : hash;
}

LayoutIdentity identify(std::span<const GradientShape> gradients, const std::string& settings) {
  std::string text = settings + ", " + std::to_string(gradients.size()) + " gradients:";
  for (const GradientShape& gradient : gradients) {
    text +=
        " " + gradient.name + " " + std::to_string(gradient.count) + " " + name_of(gradient.type);
    text += ",";
  }
  text.pop_back();
  LayoutIdentity identity{text, hash_text(text)};
  if (text.size() > kTextBytesMax) identity.text = text.substr(0, kTextBytesMax) + " …";
  return identity;
}

}  // namespace hvd
