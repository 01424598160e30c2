#include "cli/quoted.h"

#include <algorithm>
#include <cstdio>

#include "runtime/base/utf8.h"

namespace hvd {
namespace {

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

// The text with what cannot be shown as \xNN; `shown` says how each other character is written.
template <typename Shown>
std::string visible(std::string_view text, const Shown& shown) {
  std::string out;
  while (!text.empty()) {
    const size_t bytes = shown_bytes(text);
    out += bytes == 0 ? escaped(text[0]) : shown(text.substr(0, bytes));
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return out;
}

}  // namespace

std::string in_quotes(std::string_view text, size_t bytes_max) {
  const std::string_view head = head_of(text, bytes_max);
  return '"' + visible(head, [](std::string_view one) { return one; }) +
         (head.size() < text.size() ? "...\"" : "\"");
}

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const size_t bytes = shown_bytes(text);
    shown += bytes > 0 ? text.substr(0, bytes) : text[0] == '\t' ? " " : "?";
    text.remove_prefix(std::max<size_t>(character_bytes(text), 1));
  }
  return shown;
}

std::string shell_word(std::string_view word) {
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return std::string(word);
  const bool as_it_is = is_shown(word);
  const auto in_quotes = [&](std::string_view one) -> std::string_view {
    if (one == "'") return as_it_is ? "'\\''" : "\\'";
    return one == "\\" && !as_it_is ? "\\\\" : one;
  };
  return (as_it_is ? "'" : "$'") + visible(word, in_quotes) + "'";
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
