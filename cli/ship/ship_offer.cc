#include "cli/ship/ship_offer.h"

#include <algorithm>
#include <cstdio>

#include "cli/quoted.h"

namespace hvd {
namespace {

constexpr double kKilobyte = 1e3, kMegabyte = 1e6, kGigabyte = 1e9;
constexpr size_t kLargestNamed = 3, kLeftOutNamed = 3, kNameBytesMax = 200;

std::string amount(size_t count, const std::string& what, std::span<const OfferedFile> files) {
  uint64_t bytes = 0;
  for (const OfferedFile& one : files) bytes += one.bytes;
  return std::to_string(count) + " " + what + ", " + size_text(bytes);
}

}  // namespace

std::string size_text(uint64_t bytes) {
  char text[32];
  const auto print = [&](double unit, const char* name, bool exact) {
    std::snprintf(text, sizeof text, "%.*f %s", exact ? 1 : 0, double(bytes) / unit, name);
    return text;
  };
  const auto size = double(bytes);
  if (size >= kGigabyte) return print(kGigabyte, "GB", true);
  if (size >= kMegabyte) return print(kMegabyte, "MB", size < 10 * kMegabyte);
  if (size >= kKilobyte) return print(kKilobyte, "kB", size < 10 * kKilobyte);
  return print(1, bytes == 1 ? "byte" : "bytes", false);
}

std::string plan_text(const ShipOffer& offer) {
  const std::span<const OfferedFile> all(offer.files);
  std::string text = "ships: " + amount(offer.named, offer.named == 1 ? "file" : "files",
                                        all.first(offer.libraries_from));
  const size_t libraries = all.size() - offer.libraries_from;
  if (libraries > 0)
    text += "; and where a host lacks them: " + amount(libraries,
                                                       libraries == 1 ? "library" : "libraries",
                                                       all.subspan(offer.libraries_from));
  return text + "\n";
}

std::string left_out_text(const ShipOffer& offer) {
  if (offer.left_out.empty()) return "";
  std::string names;
  const size_t named = std::min(offer.left_out.size(), kLeftOutNamed);
  for (size_t i = 0; i < named; ++i)
    names += (i > 0 ? ", " : "") + in_quotes(offer.left_out[i], kNameBytesMax);
  const size_t more = offer.left_out.size() - named;
  if (more > 0) names += " and " + std::to_string(more) + " more";
  return "--ship leaves out what is neither a file nor a folder: " + names;
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
    names += (names.empty() ? "" : ", ") + in_quotes(one.path, kNameBytesMax) + " (" +
             size_text(one.bytes) + ")";
  return "what is to be shipped comes to " + size_text(sum) + ", and --ship-limit allows " +
         size_text(bytes_max) + "; the largest: " + names + "; leave some out, or raise it by " +
         "--ship-limit " + std::to_string((sum >> 30) + 1) + "G";
}

}  // namespace hvd
