// Puts words of the user's into messages: printable, and short enough for one line.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace hvd {

// In quotes. Bytes of no character that can be shown become \xNN; beyond `bytes_max` of the text's
// the rest is left out ("...").
std::string quoted(std::string_view text, size_t bytes_max = 60);

// As a shell would have to be given it: train.py, 'a b', $'\x0a'.
std::string shell_word(std::string_view word);

// Words with blanks between them, each as a shell_word; those that would make the text longer than
// `bytes_max` become "...".
std::string shell_words(std::span<const std::string> words, size_t bytes_max);

}  // namespace hvd
