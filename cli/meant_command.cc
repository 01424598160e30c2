#include "cli/meant_command.h"

#include <algorithm>
#include <sstream>
#include <string_view>

namespace hvd {
namespace {

constexpr std::string_view kBlanks = " \t\n";

bool is_digit(char letter) { return letter >= '0' && letter <= '9'; }

bool is_letter(char letter) {
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || letter == '_';
}

// NAME=VALUE, as a shell takes it before a command.
bool is_setting(std::string_view word) {
  const std::string_view name = word.substr(0, word.find('='));
  return name.size() < word.size() && !name.empty() && !is_digit(name[0]) &&
         std::ranges::all_of(name, [](char c) { return is_letter(c) || is_digit(c); });
}

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream rest(line);
  for (std::string word; rest >> word;) words.push_back(word);
  return words;
}

// Whether the shell hands words that are put behind the line to its last command, which takes none
// by itself.
bool takes_further_words(std::string_view line) {
  for (size_t at = line.find('$'); at != line.npos; at = line.find('$', at + 1)) {
    const size_t next = at + (line.substr(at + 1).starts_with('{') ? 2 : 1);
    if (next < line.size() && (line[next] == '@' || line[next] == '*' || is_digit(line[next])))
      return false;
  }
  // A comment, or text for the command's input, would take them in.
  if (line.find('#') != line.npos || line.find("<<") != line.npos) return false;
  line = line.substr(0, line.find_last_not_of(kBlanks) + 1);
  const std::string_view last = line.substr(line.find_last_of(" \t\n;") + 1);
  if (last.empty() || last == "fi" || last == "done" || last == "esac") return false;
  return is_letter(last.back()) || is_digit(last.back()) ||
         std::string_view("'\"%+,-./:=@]").find(last.back()) != std::string_view::npos;
}

}  // namespace

std::vector<std::string> meant_command(std::span<const std::string> command,
                                       const std::function<bool(const std::string&)>& is_program) {
  const std::string& line = command[0];
  const auto and_the_rest = [&](std::vector<std::string> words) {
    words.insert(words.end(), command.begin() + 1, command.end());
    return words;
  };
  const bool sets = is_setting(line);
  if (sets && command.size() > 1 &&
      (line.find_first_of(kBlanks) == line.npos || is_program(command[1])))
    return and_the_rest({"-x", line});
  const std::vector<std::string> words = words_of(line);
  if (words.size() < 2) return {};
  const bool of_shell = sets || line.find_first_of("'\"\\$&|;<>()*?`~#[") != line.npos;
  // Without a path it may be the shell's own, as cd is.
  const bool is_there = sets || (of_shell && words[0].find('/') == words[0].npos);
  if (!is_there && !is_program(words[0])) return {};
  if (!of_shell) return and_the_rest(words);
  if (command.size() == 1 || !takes_further_words(line)) return {"sh", "-c", line};
  return and_the_rest({"sh", "-c", line + " \"$@\"", "sh"});
}

}  // namespace hvd
