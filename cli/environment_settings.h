// What ranks are to find in their environment: -x, -x@RANKS and the lines of --env-file.
//
//   line  := "NAME=VALUE", also behind "export "; "# a comment"; or blank
//   VALUE := as it stands, without the blanks around it; a # behind a blank begins a comment
//          | 'as it stands' | "with \" \\ \$ \` \n and \t in it"
//
// Pure but for find_environment(). Nothing in a value is expanded, and no message shows one that
// came from a file: it may be a secret.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command_line.h"

namespace hvd {

inline constexpr size_t kEnvironmentFileBytesMax = 1 << 20;

// "NAME", "NAME=VALUE", or a name with the wildcards * and ? in it. `source` names the option in
// errors, which show no value. Throws kInvalidArgument, also for what says where a rank stands.
EnvironmentSetting read_variable(std::string_view source, const std::string& text);

// Of a variable that says where a rank stands: what `words` asks for does not happen.
std::string has_no_effect(const std::string& words, const std::string& name);

bool has_wildcard(std::string_view name);

// Throws kInvalidArgument, "train.env:3: ...".
std::vector<EnvironmentSetting> parse_environment_file(std::string_view text,
                                                       std::string_view file_name);

// Each name with wildcards becomes those that it matches in `environment`, "NAME=VALUE" entries;
// what matches nothing is left out, and said in `warnings`. Names that say where a rank stands are
// passed over, and those `kept`, whose values hold.
std::vector<EnvironmentSetting> expand_wildcards(std::span<const EnvironmentSetting> settings,
                                                 std::span<const std::string> environment,
                                                 const std::set<std::string>& kept,
                                                 std::vector<std::string>& warnings);

// Reads the environment files of the command line, looks at `environment`, which is hvdrun's, and
// completes line.spec.environment and line.warnings, also of variables of Horovod's that do nothing
// here. Files come first, so that -x wins; a wildcard wins over files, but neither over what else
// the command line gives a value nor over PWD. Throws as above, and kInvalidArgument when a file
// cannot be read.
void find_environment(CommandLine& line, std::span<const std::string> environment);

}  // namespace hvd
