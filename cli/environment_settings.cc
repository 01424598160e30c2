#include "cli/environment_settings.h"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

#include "cli/agent/worker_environment.h"
#include "cli/options.h"
#include "cli/quoted.h"
#include "cli/read_file.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr size_t kVariableBytesMax = 131'072 - 1;  // of NAME=VALUE; Linux takes no longer one
constexpr std::string_view kBlanks = " \t\r";
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // some editors begin UTF-8 with it

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

bool is_name(std::string_view name) {
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~'; });
}

std::string too_long(std::string_view name, size_t bytes) {
  return in_quotes(name) + " is " + std::to_string(bytes) +
         " bytes long; a variable may have 131071";
}

std::string zero_byte(std::string_view name) {
  return in_quotes(name) + " holds a zero byte; remove it";
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) + 1 - first);
}

// What `\c` means between double quotes; both letters where it means nothing.
std::string unescaped(char c) {
  if (c == 'n') return "\n";
  if (c == 't') return "\t";
  if (c == '"' || c == '\\' || c == '$' || c == '`') return {c};
  return {'\\', c};
}

// A value that begins with a quote; `why` is set when it makes no sense.
std::string read_quoted(std::string_view text, std::string& why) {
  const char quote = text[0];
  std::string value;
  size_t at = 1;
  for (; at < text.size() && text[at] != quote; ++at) {
    if (quote == '"' && text[at] == '\\' && at + 1 < text.size())
      value += unescaped(text[++at]);
    else
      value += text[at];
  }
  if (at == text.size()) {
    why = std::string("its value has no closing ") + quote + "; a value ends with its line";
    return {};
  }
  const std::string_view rest = trimmed(text.substr(at + 1));
  if (!rest.empty() && rest[0] != '#') why = "something follows the closing quote of its value";
  return value;
}

// COLOR=#fff is a value, since no blank is before the #.
std::string read_plain(std::string_view text) {
  size_t end = text.find('#', 1);
  while (end != text.npos && kBlanks.find(text[end - 1]) == kBlanks.npos)
    end = text.find('#', end + 1);
  return std::string(trimmed(text.substr(0, end)));
}

// Adds what the line sets. Returns what is wrong with it, or nothing.
std::string read_line(std::string_view line, std::vector<EnvironmentSetting>& settings) {
  line = trimmed(line);
  if (line.empty() || line[0] == '#') return {};
  constexpr std::string_view kExport = "export";
  if (line.starts_with(kExport) && line.size() > kExport.size() &&
      kBlanks.find(line[kExport.size()]) != kBlanks.npos)
    line = trimmed(line.substr(kExport.size()));
  const size_t equals = line.find('=');
  const std::string name(trimmed(line.substr(0, equals)));
  if (equals == line.npos || !is_name(name) || has_wildcard(name))
    return "a line is NAME=VALUE, a comment behind # or blank";
  if (line.find('\0') != line.npos) return zero_byte(name);
  if (is_of_place(name)) return has_no_effect(name, name);
  std::string why, value;
  const std::string_view text = line.substr(equals + 1), quoted_text = trimmed(text);
  if (quoted_text.starts_with('\'') || quoted_text.starts_with('"'))
    value = read_quoted(quoted_text, why);
  else
    value = read_plain(text);
  if (!why.empty()) return in_quotes(name) + ": " + why;
  const size_t bytes = name.size() + 1 + value.size();
  if (bytes > kVariableBytesMax) return too_long(name, bytes);
  settings.push_back({name, std::move(value), {}});
  return {};
}

// Whether a variable of Horovod's with this value asks for what its option does.
bool asks_for(const Option& option, std::string value) {
  for (char& c : value) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (value.empty() || value == "0") return false;
  return value_count(option) != 0 || (value != "false" && value != "no" && value != "off");
}

// What ranks find of a variable, and who says so; `first_given` is the first setting of -x.
struct Found {
  std::optional<std::string> value;
  std::string source;
  bool is_ours = false;  // on the command line, or in a file of its
};

Found find_variable(const std::string& name, std::span<const EnvironmentSetting> settings,
                    size_t first_given, std::span<const std::string> environment) {
  Found here{.value = {}, .source = name + " (in the environment)"};
  if (is_set_in(environment, name)) here.value = value_in(environment, name, "");
  Found found = here;
  for (size_t i = 0; i < settings.size(); ++i) {
    if (settings[i].name != name) continue;
    if (settings[i].value)
      found = {settings[i].value, i < first_given ? name + " (in --env-file)" : "-x " + name, true};
    else if (here.value)
      found = here;
  }
  return found;
}

// What variables of Horovod's that do nothing here ask for. Environments are inherited, so that one
// is warned about where its option is refused.
std::vector<std::string> answer_horovod_variables(const CommandLine& line, size_t first_given,
                                                  std::span<const std::string> environment) {
  std::vector<std::string> warnings;
  for (const Option& option : all_options()) {
    if (option.environment.empty() || option.fate == OptionFate::kWorks) continue;
    const std::string text(option.text);
    const bool is_said = std::ranges::any_of(
        line.warnings, [&](const std::string& warning) { return warning.ends_with(": " + text); });
    const Found found = find_variable(std::string(option.environment), line.spec.environment,
                                      first_given, environment);
    if (is_said || !found.value || !asks_for(option, *found.value)) continue;
    const bool refused = option.fate == OptionFate::kRefused;
    warnings.push_back(found.source +
                       (refused ? " is not supported yet and is ignored; " : " has no effect: ") +
                       (text == "leave it out" && !found.is_ours ? "unset it" : text));
  }
  return warnings;
}

}  // namespace

std::string has_no_effect(const std::string& words, const std::string& name) {
  return words + " has no effect: hvdrun gives each rank its own " + name + "; leave it out";
}

bool has_wildcard(std::string_view name) { return name.find_first_of("*?") != name.npos; }

EnvironmentSetting read_variable(std::string_view source, const std::string& text) {
  const size_t equals = std::min(text.find('='), text.size());
  const std::string_view name = std::string_view(text).substr(0, equals);
  const std::string start = std::string(source) + " ";
  if (!is_name(name))
    refuse(start + "takes NAME or NAME=VALUE, and " + in_quotes(name) + " is no name");
  if (text.find('\0') != text.npos) refuse(start + zero_byte(name));
  if (text.size() > kVariableBytesMax) refuse(start + too_long(name, text.size()));
  EnvironmentSetting setting{std::string(name), std::nullopt, {}};
  if (equals == text.size()) return setting;
  if (has_wildcard(name))
    refuse(start + in_quotes(name) +
           ": a name with * or ? stands for variables that are set here, and takes no value");
  if (is_of_place(name)) refuse(has_no_effect(start + setting.name, setting.name));
  setting.value = text.substr(equals + 1);
  return setting;
}

std::vector<EnvironmentSetting> parse_environment_file(std::string_view text,
                                                       std::string_view file_name) {
  std::vector<EnvironmentSetting> settings;
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string why = read_line(text.substr(0, end), settings);
    if (!why.empty()) refuse(std::string(file_name) + ":" + std::to_string(number) + ": " + why);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return settings;
}

std::vector<EnvironmentSetting> expand_wildcards(std::span<const EnvironmentSetting> settings,
                                                 std::span<const std::string> environment,
                                                 const std::set<std::string>& kept,
                                                 std::vector<std::string>& warnings) {
  std::vector<EnvironmentSetting> all;
  for (const EnvironmentSetting& one : settings) {
    if (!has_wildcard(one.name)) {
      all.push_back(one);
      continue;
    }
    bool is_any_set = false;
    for (const std::string& entry : environment) {
      const std::string name = entry.substr(0, entry.find('='));
      if (fnmatch(one.name.c_str(), name.c_str(), FNM_NOESCAPE) != 0 || is_of_place(name)) continue;
      is_any_set = true;
      if (!kept.contains(name)) all.push_back({name, std::nullopt, {}});
    }
    if (!is_any_set)
      warnings.push_back("-x " + shell_word(one.name) +
                         " passes nothing on: no variable of such a name is set here");
  }
  return all;
}

void find_environment(CommandLine& line, std::span<const std::string> environment) {
  std::vector<EnvironmentSetting>& settings = line.spec.environment;
  std::set<std::string> kept = {"PWD"};  // ranks have that of the directory that they start in
  for (const EnvironmentSetting& one : settings)
    if (one.value && one.ranks.empty()) kept.insert(one.name);
  std::vector<EnvironmentSetting> of_files;
  for (const std::string& path : line.environment_files) {
    const std::string text =
        read_given_file(path, kEnvironmentFileBytesMax, "environment file", "--env-file");
    for (EnvironmentSetting& one : parse_environment_file(text, shell_word(path)))
      of_files.push_back(std::move(one));
  }
  settings.insert(settings.begin(), of_files.begin(), of_files.end());
  settings = expand_wildcards(settings, environment, kept, line.warnings);
  const auto warnings = answer_horovod_variables(line, of_files.size(), environment);
  line.warnings.insert(line.warnings.end(), warnings.begin(), warnings.end());
}

}  // namespace hvd
