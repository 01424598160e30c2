// Puts words of the user's and of other hosts into messages: printable, and short enough for one
// line.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace hvd {

// In quotes. Bytes of no character that can be shown become \xNN; beyond `bytes_max` of the text's
// the rest is left out ("...").
std::string in_quotes(std::string_view text, size_t bytes_max = 60);

// What a worker or another host said, without quotes: a tab becomes a blank, and what is no UTF-8
// or would move a terminal's cursor a '?'.
std::string printable(std::string_view text);

// As a shell would have to be given it: train.py, 'a b', $'\x0a'.
std::string shell_word(std::string_view word);

// Words with blanks between them, each as a shell_word; those that would make the text longer than
// `bytes_max` become "...".
std::string shell_words(std::span<const std::string> words, size_t bytes_max);

}  // namespace hvd
