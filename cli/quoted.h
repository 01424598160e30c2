// Puts words of the user's into messages: in quotes, printable, short enough for one line.
#pragma once

#include <string>
#include <string_view>

namespace hvd {

// Bytes that are not printable ASCII become \xNN; beyond 60 of them the rest is left out ("...").
std::string quoted(std::string_view text);

}  // namespace hvd
