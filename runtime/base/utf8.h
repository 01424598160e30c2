// Text as UTF-8: cut between its characters, and told from bytes that are none.
//
// Names and paths are the user's, so bytes that are no UTF-8 come too: they are cut anywhere.
#pragma once

#include <cstddef>
#include <cstring>
#include <string_view>

namespace hvd {

inline bool continues_character(char letter) {
  return (static_cast<unsigned char>(letter) & 0xc0) == 0x80;
}

// How many bytes the character has that the text begins with; 0: they are no UTF-8.
inline size_t character_bytes(std::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  if (text.empty()) return 0;
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t bytes = first < 0xc2   ? 0
                       : first < 0xe0 ? 2
                       : first < 0xf0 ? 3
                       : first < 0xf5 ? 4
                                      : 0;
  if (bytes == 0 || text.size() < bytes) return 0;
  // Longer than it need be, half of a pair of UTF-16, or beyond the last character.
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) > 0x9f) ||
      (first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) > 0x8f))
    return 0;
  for (size_t at = 1; at < bytes; ++at)
    if (!continues_character(text[at])) return 0;
  return bytes;
}

// How many bytes the character has that the text begins with, if it can be shown as it is; 0: they
// are no UTF-8, or it is one that nobody sees: it would move a terminal's cursor, turn round what
// stands beside it, or leave no trace.
inline size_t shown_bytes(std::string_view text) {
  const size_t bytes = character_bytes(text);
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  if (bytes == 1 && (byte(0) < 0x20 || byte(0) == 0x7f)) return 0;
  if (bytes == 2 && byte(0) == 0xc2 && byte(1) < 0xa0) return 0;  // U+0080 to U+009F
  if (bytes == 3) {
    const unsigned last = byte(2), first_two = unsigned{byte(0)} << 8 | byte(1);
    // No width and marks of direction, ends of lines and overrides: U+200B to 200F, 2028 to 202E.
    if (first_two == 0xe280 && ((last >= 0x8b && last <= 0x8f) || (last >= 0xa8 && last <= 0xae)))
      return 0;
    if (first_two == 0xe281 && last >= 0xa0 && last <= 0xaf) return 0;  // U+2060 to U+206F
    if (first_two == 0xefbb && last == 0xbf) return 0;                  // a byte order mark
  }
  return bytes;
}

// Whether all of it can be shown as it is.
inline bool is_shown(std::string_view text) {
  while (!text.empty()) {
    const size_t bytes = shown_bytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

// What is left of a text of at most so many bytes when it is cut at its end, or at its beginning.
inline std::string_view head_of(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  size_t end = bytes_max;
  for (size_t back = 0; back < 3 && end > 0 && continues_character(text[end]); ++back) --end;
  return text.substr(0, continues_character(text[end]) ? bytes_max : end);
}

inline std::string_view tail_of(std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  std::string_view tail = text.substr(text.size() - bytes_max);
  for (size_t skip = 0; skip <= 3; ++skip)
    if (skip == tail.size() || !continues_character(tail[skip])) return tail.substr(skip);
  return tail;
}

// Into a place of so many bytes, its zero included.
inline void copy_text(char* to, size_t bytes, std::string_view text) {
  const std::string_view head = head_of(text, bytes - 1);
  if (!head.empty()) memcpy(to, head.data(), head.size());
  to[head.size()] = 0;
}

}  // namespace hvd
