#include "cli/ship/ship_offer.h"

#include <algorithm>
#include <cstdio>

#include "cli/quoted.h"

namespace hvd {
namespace {

constexpr double kMegabyte = 1e6, kGigabyte = 1e9;
constexpr size_t kLargestNamed = 3, kNameBytesMax = 200;

}  // namespace

std::string size_text(uint64_t bytes) {
  char text[32];
  if (double(bytes) >= kGigabyte)
    std::snprintf(text, sizeof text, "%.1f GB", double(bytes) / kGigabyte);
  else
    std::snprintf(text, sizeof text, "%.*f MB", double(bytes) < 10 * kMegabyte ? 1 : 0,
                  double(bytes) / kMegabyte);
  return text;
}

std::string limit_objection(std::span<const OfferedFile> files, uint64_t bytes_max) {
  uint64_t sum = 0;
  for (const OfferedFile& one : files) sum += one.bytes;
  if (sum <= bytes_max) return "";
  std::vector<OfferedFile> largest(files.begin(), files.end());
  std::ranges::sort(largest, [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  largest.resize(std::min(largest.size(), kLargestNamed));
  std::string names;
  for (const OfferedFile& one : largest)
    names += (names.empty() ? "" : ", ") + quoted(one.path, kNameBytesMax) + " (" +
             size_text(one.bytes) + ")";
  return "what is to be shipped comes to " + size_text(sum) + ", and --ship-limit allows " +
         size_text(bytes_max) + "; the largest: " + names + "; leave some out, or raise it by " +
         "--ship-limit " + std::to_string((sum >> 30) + 1) + "G";
}

}  // namespace hvd
