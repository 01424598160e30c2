#include "cli/arguments.h"

#include <algorithm>
#include <cstring>

#include "cli/quoted.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

// A value behind = may be nobody's to read.
[[noreturn]] void refuse_unknown(std::string_view word) {
  const std::string_view name = word.substr(0, word.find('='));
  const std::string start = "unknown option " + in_quotes(name);
  // -Hlocalhost:2, -np2 and the like: a short option and its value in one word.
  for (const size_t length : {3, 2}) {
    if (word.size() <= length || word[1] == '-') continue;
    const Option* option = find_option(word.substr(0, length));
    const std::string_view value = name.substr(std::min(length, name.size()));
    const bool sets = name.size() < word.size();
    const bool looks_meant = sets || value.find_first_of(":0123456789") != value.npos;
    if (option != nullptr && value_count(*option) == 1 && looks_meant) {
      refuse(start + "; did you mean " + std::string(word.substr(0, length)) + " " +
             shell_word(value) + (sets ? "=VALUE" : "") + "?");
    }
  }
  const std::string_view nearest = nearest_spelling(name);
  if (nearest.empty()) refuse(start + "; hvdrun --help lists all options");
  refuse(start + "; did you mean " + std::string(nearest) + "?");
}

bool is_option_word(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

// Whether it may be RANKS of -x@; where they are forgotten, all that follows is taken wrongly.
bool looks_like_ranks(std::string_view word) {
  return word.find_first_not_of("0123456789,-") == word.npos;
}

// One option with its values, from words[0] on; `used` becomes the number of words it takes.
GivenOption read_option(std::span<const std::string> words, size_t& used) {
  const std::string& word = words[0];
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const size_t value_at = name.find('@') + 1;  // -x@0,2-5: the first value, in the same word
  const Option* option = find_option(name);
  GivenOption given{option, name, {}};
  if (option == nullptr && value_at > 0) {
    given.spelling = name.substr(0, value_at);
    given.option = option = find_option(given.spelling);
    given.values.push_back(name.substr(value_at));
  }
  if (option == nullptr) refuse_unknown(word);

  used = 1;
  const auto count = static_cast<size_t>(value_count(*option));
  if (equals != word.npos) {
    if (count == 0) refuse(name + " takes no value, but " + in_quotes(word) + " was given");
    given.values.push_back(word.substr(equals + 1));
  }
  while (given.values.size() < count) {
    const std::string takes = name + " takes " + std::string(option->values);
    if (used == words.size()) refuse(takes + ", but nothing follows it");
    const std::string& value = words[used++];
    if (value == "--" || find_option(value) != nullptr) {
      refuse(takes + ", but the option " + value + " follows it");
    }
    given.values.push_back(value);
  }
  if (option->name == "--env@" && !looks_like_ranks(given.values[0]))
    refuse(std::string(shown_name(*option)) +
           " takes a list of ranks such as 0,2-5 before NAME=VALUE, not " +
           in_quotes(given.values[0].substr(0, given.values[0].find('='))));
  for (const std::string& value : given.values) {
    if (value.empty())
      refuse(name + " takes " + std::string(option->values) + ", not an empty word");
  }
  return given;
}

}  // namespace

Arguments split_arguments(std::span<const std::string> words) {
  Arguments arguments;
  const size_t count = words.size();
  while (!words.empty() && is_option_word(words[0])) {
    if (words[0] == "--") {
      words = words.subspan(1);
      break;
    }
    size_t used = 0;
    arguments.options.push_back(read_option(words, used));
    words = words.subspan(used);
    arguments.options.back().last_word = count - words.size() - 1;
  }
  arguments.command.assign(words.begin(), words.end());
  return arguments;
}

void hide_values(std::span<const std::string> words, std::span<char* const> argv) {
  for (const GivenOption& given : split_arguments(words).options) {
    if (!given.option->name.starts_with("--env") || given.option->name == "--env-file") continue;
    const size_t equals = given.values.back().find('=');
    if (equals == std::string::npos) continue;
    const size_t bytes = given.values.back().size() - equals - 1;
    char* word = argv[given.last_word];  // which ends with the value
    std::memset(word + std::strlen(word) - bytes, '*', bytes);
  }
}

}  // namespace hvd
