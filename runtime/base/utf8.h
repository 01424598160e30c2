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

// How many bytes a character has of which this is the first one; 0: it is none's.
inline size_t bytes_of_character(char letter) {
  const auto first = static_cast<unsigned char>(letter);
  if (first < 0x80) return 1;
  return first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

// Whether a character can go on so, of whose first bytes the text is some.
inline bool goes_on(std::string_view text) {
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
  for (size_t at = 1; at < text.size(); ++at)
    if (!continues_character(text[at])) return false;
  if (text.size() < 2) return true;
  // Longer than it need be, half of a pair of UTF-16, or beyond the last character.
  return !((byte(0) == 0xe0 && byte(1) < 0xa0) || (byte(0) == 0xed && byte(1) > 0x9f) ||
           (byte(0) == 0xf0 && byte(1) < 0x90) || (byte(0) == 0xf4 && byte(1) > 0x8f));
}

// How many bytes the character has that the text begins with; 0: they are no UTF-8.
inline size_t character_bytes(std::string_view text) {
  const size_t bytes = text.empty() ? 0 : bytes_of_character(text[0]);
  return text.size() >= bytes && goes_on(text.substr(0, bytes)) ? bytes : 0;
}

// Whether it is a character without its end.
inline bool is_begun_character(std::string_view text) {
  return !text.empty() && text.size() < bytes_of_character(text[0]) && goes_on(text);
}

// Characters that nobody sees: they would move a terminal's cursor, turn round what stands beside
// them, or leave no trace. These are controls, ends of lines and what Unicode calls
// Default_Ignorable_Code_Point, but for FE00 to FE0F, which emoji need.
struct CharacterRange {
  char32_t first, last;
};
inline constexpr CharacterRange kUnseen[] = {
    {0x0, 0x1f},          // control
    {0x7f, 0x9f},         // control
    {0xad, 0xad},         // a hyphen where a line may end
    {0x34f, 0x34f},       // joins without a sign
    {0x61c, 0x61c},       // a mark of direction
    {0x115f, 0x1160},     // Hangul fillers
    {0x17b4, 0x17b5},     // vowels that are not written
    {0x180b, 0x180f},     // variants of Mongolian letters, no width
    {0x200b, 0x200f},     // no width, marks of direction
    {0x2028, 0x202e},     // ends of lines, overrides of direction
    {0x2060, 0x206f},     // no width, isolates of direction
    {0x3164, 0x3164},     // a Hangul filler
    {0xfeff, 0xfeff},     // a byte order mark
    {0xffa0, 0xffa0},     // a Hangul filler
    {0xfff0, 0xfffb},     // not assigned, marks around a note
    {0x1bca0, 0x1bca3},   // marks of shorthand
    {0x1d173, 0x1d17a},   // marks around notes of music
    {0xe0000, 0xe0fff}};  // tags, variants of letters

// How many bytes the character has that the text begins with, if it can be shown as it is; 0: they
// are no UTF-8, or it is one that nobody sees.
inline size_t shown_bytes(std::string_view text) {
  const size_t bytes = character_bytes(text);
  if (bytes == 0) return 0;
  // The first of several bytes has one bit for each of them, and a zero, before its part.
  char32_t code = static_cast<unsigned char>(text[0]) & (bytes == 1 ? 0x7fu : 0x7fu >> bytes);
  for (size_t at = 1; at < bytes; ++at)
    code = code << 6 | (static_cast<unsigned char>(text[at]) & 0x3fu);
  for (const CharacterRange& one : kUnseen)
    if (code >= one.first && code <= one.last) return 0;
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
