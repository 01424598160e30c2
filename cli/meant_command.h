// What a command that is not there was meant as: who quoted a whole line, or set a variable before
// it, as for a shell.
//
// Pure.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace hvd {

// The words to give hvdrun instead of `command`, from its own options on; none where nothing is
// known to be meant. `is_program` says of a word whether ranks would find a program by it.
std::vector<std::string> meant_command(std::span<const std::string> command,
                                       const std::function<bool(const std::string&)>& is_program);

}  // namespace hvd
