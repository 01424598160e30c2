// Where --output-filename puts a rank's output.
//
// Pure.
#pragma once

#include <algorithm>
#include <array>
#include <string>

namespace hvd {

// Rank 3 of 16 is "rank.03": they sort.
inline std::string rank_folder(const std::string& directory, int rank, int ranks) {
  const size_t width = std::to_string(std::max(0, ranks - 1)).size();
  const std::string number = std::to_string(rank);
  return directory + "/rank." + std::string(width - number.size(), '0') + number;
}

// Below its folder.
inline constexpr std::array kRankFiles = {"/stdout", "/stderr"};

}  // namespace hvd
