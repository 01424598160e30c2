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
  std::string spelling;             // of its name, as it was given
  std::vector<std::string> values;  // as many as the option takes
  size_t last_word = 0;             // the place of the one that ends it
};

struct Arguments {
  std::vector<GivenOption> options;  // in the order given
  std::vector<std::string> command;  // from the first word that is no option, or behind `--`
};

// `words` are those behind the program's name. Throws kInvalidArgument for an unknown option (with
// the nearest known one), a value that is missing or empty, and a value given to a flag.
Arguments split_arguments(std::span<const std::string> words);

// Overwrites the values that -x and -x@ give variables in `argv`, where `words` come from: every
// user of the machine may read a process's command line, for as long as it lives.
void hide_values(std::span<const std::string> words, std::span<char* const> argv);

}  // namespace hvd
