// Line by line, then character by character.
#include "runtime/engine/layout_difference.h"

#include <algorithm>
#include <sstream>
#include <vector>

namespace hvd {
namespace {

constexpr size_t kExcerpt = 200;  // bytes of a line
constexpr size_t kBefore = 50;    // the difference

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string excerpt(const std::string& line, size_t place) {
  if (line.size() <= kExcerpt) return line;
  const size_t from = place > kBefore ? place - kBefore : 0;
  return (from > 0 ? "…" : "") + line.substr(from, kExcerpt) +
         (line.size() - from > kExcerpt ? "…" : "");
}

std::string side(int rank, const std::vector<std::string>& lines, size_t i, size_t place) {
  std::string text = "rank " + std::to_string(rank) + " has ";
  if (i >= lines.size()) return text + "no more";
  text += excerpt(lines[i], std::min(place, lines[i].size()));
  if (i > 0 && i + 1 < lines.size())
    text += ", parameter " + std::to_string(i) + " of " + std::to_string(lines.size() - 2);
  return text;
}

}  // namespace

std::string layout_difference(const RankLayout& first, const RankLayout& second) {
  const std::vector<std::string> a = lines_of(first.text), b = lines_of(second.text);
  const auto line =
      static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  size_t place = 0;
  if (line < a.size() && line < b.size())
    place = static_cast<size_t>(
        std::mismatch(a[line].begin(), a[line].end(), b[line].begin(), b[line].end()).first -
        a[line].begin());
  return side(first.rank, a, line, place) + "; " + side(second.rank, b, line, place);
}

}  // namespace hvd
