// The values of options, read into a CommandLine: one function per option that takes effect.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>

#include "cli/command_line.h"

namespace hvd {

// A CommandLine being filled.
struct Draft {
  CommandLine line;
  bool stall_check = true;
  std::chrono::seconds stall_warning{60};
};

struct Setting {
  std::string_view option;  // its name in options.h
  // `source` names the option or variable in errors. Throws kInvalidArgument. A flag's value is "".
  void (*apply)(Draft& draft, std::string_view source, const std::string& value);
};

std::span<const Setting> all_settings();

}  // namespace hvd
