#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>
#include <string_view>

#include "cli/agent/worker_environment.h"
#include "cli/arguments.h"
#include "cli/environment_settings.h"
#include "cli/features.h"
#include "cli/help.h"
#include "cli/quoted.h"
#include "cli/settings.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

[[noreturn]] void refuse(ErrorCode code, const std::string& message) { throw Error(code, message); }

bool is_given(const Arguments& arguments, std::string_view name) {
  return std::any_of(arguments.options.begin(), arguments.options.end(),
                     [&](const GivenOption& given) { return given.option->name == name; });
}

// The text of the first option that asks for one, if any.
std::optional<std::string> requested_text(const Arguments& arguments) {
  for (const GivenOption& given : arguments.options) {
    const std::string_view name = given.option->name;
    if (name == "-h") return short_help();
    if (name == "--help") return full_help();
    if (name == "--version") return version_text();
    if (name == "--check-build") return check_build_text(is_given(arguments, "--verbose"));
  }
  return std::nullopt;
}

// What Horovod's options come to that do nothing here: a warning each, or an error.
std::vector<std::string> answer_horovod_options(const Arguments& arguments) {
  std::vector<std::string> warnings;
  std::set<const Option*> warned;
  for (const GivenOption& given : arguments.options) {
    const Option& option = *given.option;
    const std::string text(option.text);
    if (option.fate == OptionFate::kRefused)
      refuse(ErrorCode::kUnsupported, given.spelling + " is not supported yet; " + text);
    if (option.fate == OptionFate::kIgnored && warned.insert(&option).second)
      warnings.push_back(given.spelling + " has no effect: " + text);
  }
  return warnings;
}

// What libhvd takes for a switch, so that no rank refuses what is let through here.
bool means_yes(const std::string& variable, const std::string& value) {
  if (value == "1" || value == "true" || value == "True") return true;
  if (value == "0" || value == "false" || value == "False") return false;
  refuse(ErrorCode::kInvalidArgument,
         variable + " (in the environment) takes 1 or 0, not " + hvd::in_quotes(value));
}

void apply_environment(const Arguments& arguments, const ReadEnvironment& read_environment,
                       Draft& draft) {
  for (const Setting& setting : all_settings()) {
    const Option& option = *find_option(setting.option);
    if (option.environment.empty() || is_given(arguments, option.name)) continue;
    const std::string variable(option.environment);
    const std::optional<std::string> value = read_environment(variable.c_str());
    if (!value || value->empty()) continue;
    if (value_count(option) == 0 && !means_yes(variable, *value)) continue;
    setting.apply(draft, variable + " (in the environment)", *value);
  }
}

// Lets CLI11 collect what was given for each option, in one call per option.
void apply_options(const Arguments& arguments, Draft& draft) {
  CLI::App app;
  app.set_help_flag();
  for (const Setting& setting : all_settings()) {
    const Option& option = *find_option(setting.option);
    if (!is_given(arguments, option.name)) continue;  // an option costs CLI11 microseconds
    const std::string name(option.name), shown(shown_name(option));
    if (value_count(option) == 0) {
      app.add_flag_callback(name, [&draft, &setting, shown] { setting.apply(draft, shown, ""); });
      continue;
    }
    // Of the others the last one counts, as the help says.
    const bool all_count = name.starts_with("--env") || name.starts_with("--host") ||
                           name == "--ssh-arg" || name == "--network-interface" || name == "--ship";
    app.add_option_function<std::vector<std::string>>(
           name,
           [&draft, &setting, shown, all_count](const std::vector<std::string>& values) {
             for (size_t i = all_count ? 0 : values.size() - 1; i < values.size(); ++i) {
               setting.apply(draft, shown, values[i]);
             }
           })
        ->allow_extra_args(false);
  }
  std::vector<std::string> words;
  for (const GivenOption& given : arguments.options) {
    if (given.option->fate != OptionFate::kWorks && given.option->fate != OptionFate::kForTests)
      continue;
    std::string word(given.option->name);
    for (const std::string& value : given.values) word += "=" + value;
    words.push_back(std::move(word));
  }
  std::reverse(words.begin(), words.end());  // as CLI11 wants it
  try {
    app.parse(std::move(words));
  } catch (const CLI::Error& error) {
    refuse(ErrorCode::kInvalidArgument, error.what());
  }
}

// Ranks read the variables that hold the defaults here; what the command line sets goes there too.
std::vector<EnvironmentSetting> settings_for_ranks(const Arguments& arguments) {
  std::vector<EnvironmentSetting> settings;
  for (const GivenOption& given : arguments.options) {
    std::string value = given.values.empty() ? "1" : given.values[0];
    std::transform(value.begin(), value.end(), value.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    if (given.option->name == "--stall-check") {
      settings.push_back({"HOROVOD_STALL_CHECK_DISABLE", "0"});
    } else if (given.option->fate == OptionFate::kWorks && !given.option->environment.empty()) {
      settings.push_back({std::string(given.option->environment), std::move(value)});
    }
  }
  return settings;
}

// Rules between options.
void check_together(const Arguments& arguments, const CommandLine& line) {
  constexpr std::pair<std::string_view, std::string_view> kExcluding[] = {
      {"--hosts", "--hostfile"},
      {"--hosts", "--pretend-hosts"},
      {"--hostfile", "--pretend-hosts"},
      {"--stall-check", "--no-stall-check"}};
  for (const auto& [one, other] : kExcluding) {
    if (is_given(arguments, one) && is_given(arguments, other)) {
      refuse(ErrorCode::kInvalidArgument, std::string(shown_name(*find_option(one))) + " and " +
                                              std::string(shown_name(*find_option(other))) +
                                              " exclude each other; give one of them");
    }
  }
  if (line.spec.command.empty()) {
    refuse(ErrorCode::kInvalidArgument,
           "no command was given; put it behind the options, as in hvdrun -np 2 ./train");
  }
  if (line.spec.command[0].empty()) {
    refuse(ErrorCode::kInvalidArgument,
           "the command is an empty word; put one behind the options, as in hvdrun -np 2 ./train");
  }
}

}  // namespace

CommandLine parse_command_line(std::span<const std::string> words,
                               const ReadEnvironment& read_environment) {
  Arguments arguments = split_arguments(words);
  Draft draft;
  CommandLine& line = draft.line;
  if (std::optional<std::string> text = requested_text(arguments)) {
    line.request = Request::kShow;
    line.text = std::move(*text);
    return line;
  }
  if (is_given(arguments, "--all"))
    refuse(ErrorCode::kInvalidArgument, "--all goes with hvdrun clean; leave it out");
  line.warnings = answer_horovod_options(arguments);
  apply_environment(arguments, read_environment, draft);
  apply_options(arguments, draft);
  if (draft.stall_check) {
    line.spec.stall_warning = draft.stall_warning;
  } else {
    line.spec.stall_warning.reset();
  }
  // First, so that -x of the same name wins.
  std::vector<EnvironmentSetting>& environment = line.spec.environment;
  const std::vector<EnvironmentSetting> ours = settings_for_ranks(arguments);
  environment.insert(environment.begin(), ours.begin(), ours.end());
  line.spec.command = std::move(arguments.command);
  check_together(arguments, line);
  for (const EnvironmentSetting& setting : environment) {
    if (setting.value || has_wildcard(setting.name)) continue;
    if (is_of_place(setting.name)) {
      line.warnings.push_back(has_no_effect("-x " + setting.name, setting.name));
    } else if (!read_environment(setting.name.c_str())) {
      line.warnings.push_back("-x " + setting.name + " passes nothing on: it is not set here; -x " +
                              setting.name + "=VALUE sets it");
    }
  }
  return line;
}

}  // namespace hvd
