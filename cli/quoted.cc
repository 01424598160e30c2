#include "cli/quoted.h"

#include <cstdio>

namespace hvd {
namespace {
constexpr size_t kShownBytes = 60;
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (char letter : text.substr(0, kShownBytes)) {
    if (letter >= ' ' && letter <= '~') {
      out += letter;
      continue;
    }
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned char>(letter));
    out += escaped;
  }
  if (text.size() > kShownBytes) out += "...";
  return out + "\"";
}

}  // namespace hvd
