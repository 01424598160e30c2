// How an operation is called to which the program gave no name: by its number among those. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace hvd {

inline constexpr std::string_view kUnnamed = ".noname.";

inline std::string unnamed(std::string_view kind, uint64_t number) {
  return std::string(kind) + std::string(kUnnamed) + std::to_string(number);
}

// Never asked for again, if so.
inline bool is_unnamed(std::string_view name) {
  const size_t mark = name.rfind(kUnnamed);
  if (mark == std::string_view::npos) return false;
  const std::string_view number = name.substr(mark + kUnnamed.size());
  return !number.empty() &&
         std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace hvd
