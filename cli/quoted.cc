#include "cli/quoted.h"

#include <algorithm>
#include <cstdio>

namespace hvd {
namespace {

bool is_printable(char letter) { return letter >= ' ' && letter <= '~'; }

bool is_plain(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
         (letter >= '0' && letter <= '9') ||
         std::string_view("%+,-./:=@_").find(letter) != std::string_view::npos;
}

std::string escaped(char letter) {
  char text[8];
  std::snprintf(text, sizeof text, "\\x%02x", static_cast<unsigned char>(letter));
  return text;
}

}  // namespace

std::string quoted(std::string_view text, size_t bytes_max) {
  std::string out = "\"";
  for (char letter : text.substr(0, bytes_max)) {
    if (is_printable(letter)) {
      out += letter;
    } else {
      out += escaped(letter);
    }
  }
  if (text.size() > bytes_max) out += "...";
  return out + "\"";
}

std::string shell_word(std::string_view word) {
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return std::string(word);
  const bool printable = std::all_of(word.begin(), word.end(), is_printable);
  std::string out = printable ? "'" : "$'";
  for (char letter : word) {
    if (!is_printable(letter)) {
      out += escaped(letter);
    } else if (letter == '\'') {
      out += printable ? "'\\''" : "\\'";
    } else if (letter == '\\' && !printable) {
      out += "\\\\";
    } else {
      out += letter;
    }
  }
  return out + "'";
}

std::string shell_words(std::span<const std::string> words, size_t bytes_max) {
  std::string out;
  for (const std::string& word : words) {
    if (!out.empty()) out += ' ';
    // Looked at before it is made: a word may have a megabyte.
    if (out.size() + word.size() > bytes_max) return out + "...";
    out += shell_word(word);
  }
  return out;
}

}  // namespace hvd
