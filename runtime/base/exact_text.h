// A number as text, with as many digits as tell it from every other.
#pragma once

#include <array>
#include <charconv>
#include <string>

namespace hvd {

inline std::string exact_text(double number) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.begin(), text.end(), number).ptr};
}

}  // namespace hvd
