// Where hvdrun's own options end and the command begins, and which options were given.
//
// Pure. Comes before CLI11, which knows neither `-np` nor where to stop: options leave here under
// their one name, joined with their values.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/options.h"

namespace hvd {

struct GivenOption {
  const Option* option;
  std::vector<std::string> values;  // as many as the option takes
};

struct Arguments {
  std::vector<GivenOption> options;  // in the order given
  std::vector<std::string> command;  // from the first word that is no option, or behind `--`
};

// `words` are those behind the program's name. Throws kInvalidArgument for an unknown option (with
// the nearest known one), a value that is missing or empty, and a value given to a flag.
Arguments split_arguments(std::span<const std::string> words);

}  // namespace hvd
