// Words on standard error by who may not wait for its reader, or not for long.
#pragma once

#include <chrono>
#include <string_view>

namespace hvd {

// As many of the words as standard error has room for; its reader is waited for as long as
// `patience` for each PIPE_BUF bytes, with 0 not at all. What then is left is lost, as all is that
// nobody reads any more. Any thread.
void write_last_words(std::string_view words, std::chrono::milliseconds patience = {});

}  // namespace hvd
