// Line by line, then character by character.
#include "runtime/engine/layout_difference.h"

#include <algorithm>
#include <span>
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

// A description: what line 0 says, the lines of the parameters, what the last one says.
struct Description {
  explicit Description(const std::string& text) : lines(lines_of(text)) {
    lines.resize(std::max<size_t>(lines.size(), 2));
  }
  std::span<const std::string> parameters() const { return {&lines[1], lines.size() - 2}; }

  std::vector<std::string> lines;
};

std::string counted(size_t parameters) {
  return std::to_string(parameters) + (parameters == 1 ? " parameter" : " parameters");
}

// `other`: the same line of the other rank.
std::string side(int rank, const std::string& line, const std::string& other) {
  const auto place = std::mismatch(line.begin(), line.end(), other.begin(), other.end()).first;
  return "rank " + std::to_string(rank) + " has " +
         excerpt(line, static_cast<size_t>(place - line.begin()));
}

std::string side(int rank, std::span<const std::string> parameters,
                 std::span<const std::string> others, size_t i) {
  if (i == parameters.size())
    return "rank " + std::to_string(rank) + " has no more than " + counted(i);
  return side(rank, parameters[i], i < others.size() ? others[i] : "") + ", parameter " +
         std::to_string(i + 1) + " of " + std::to_string(parameters.size());
}

}  // namespace

std::string layout_difference(const RankLayout& first, const RankLayout& second) {
  const Description a(first.text), b(second.text);
  const auto both = [&](const std::string& one, const std::string& other) {
    return side(first.rank, one, other) + "; " + side(second.rank, other, one);
  };
  if (a.lines.front() != b.lines.front()) return both(a.lines.front(), b.lines.front());
  const auto mine = a.parameters(), theirs = b.parameters();
  const auto at = std::ranges::mismatch(mine, theirs).in1 - mine.begin();
  const auto i = static_cast<size_t>(at);
  if (i == mine.size() && i == theirs.size()) return both(a.lines.back(), b.lines.back());
  return side(first.rank, mine, theirs, i) + "; " + side(second.rank, theirs, mine, i);
}

}  // namespace hvd
