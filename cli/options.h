// Every option that hvdrun knows by name: the one table behind parsing, help and the man page.
//
// Pure data and look-ups. Horovod's options are all in it, also those that have no meaning here or
// do not work yet, so that each of them gets an answer of its own.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

enum class OptionGroup {
  kHosts,
  kGpus,
  kCommand,
  kTime,
  kStall,
  kOutput,
  kInformation,
  kClean,
  kHorovod
};

enum class OptionFate {
  kWorks,
  kForTests,   // works, and no help names it
  kSatisfied,  // asks for what is always so: accepted in silence
  kIgnored,    // has no meaning here by design: accepted with a warning
  kRefused,    // not supported yet: an error
};

struct Option {
  std::string_view name;     // "--num-proc": the spelling inside the program
  std::string_view aliases;  // further spellings, separated by blanks
  std::string_view values;   // names of its values, separated by blanks; empty: a flag
  OptionGroup group;
  OptionFate fate;
  std::string_view text;  // what it does; for ignored and refused ones what to use instead
  // The variable, if any, that holds its default, and by which ranks get to know what the command
  // line says; of an option that does nothing here, the one that asks for the same: warned about.
  std::string_view environment;
};

std::span<const Option> all_options();

// The option with this exact spelling, or null. Abbreviations are not accepted.
const Option* find_option(std::string_view spelling);

// The spelling that users know best: `-np` rather than `--num-proc`.
std::string_view shown_name(const Option& option);

// All spellings, the shown one first.
std::vector<std::string_view> spellings(const Option& option);

// How many words of the command line belong to it.
int value_count(const Option& option);

// The known spelling most like this one, or empty when none is close.
std::string_view nearest_spelling(std::string_view unknown);

}  // namespace hvd
