#include "cli/command_check.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <vector>

#include "cli/exit_code.h"
#include "cli/look.h"
#include "cli/meant_command.h"
#include "cli/quoted.h"
#include "runtime/base/unique_fd.h"

namespace hvd {
namespace {

constexpr size_t kExampleBytesMax = 200;  // of a command in a message

// `path` as seen from `directory`.
std::string seen_from(const std::string& directory, const std::string& path) {
  if (directory.empty() || path.starts_with('/')) return path;
  return directory + "/" + path;
}

std::vector<std::string> path_entries(const CommandPlace& place) {
  std::string_view rest = place.path;
  std::vector<std::string> entries;
  for (;;) {
    const size_t colon = std::min(rest.find(':'), rest.size());
    const std::string entry(rest.substr(0, colon));
    entries.push_back(seen_from(place.directory, entry.empty() ? "." : entry));
    if (colon == rest.size()) return entries;
    rest.remove_prefix(colon + 1);
  }
}

// Where a command without a slash is found; empty when nowhere.
std::string find_program(const std::vector<std::string>& entries, const std::string& name,
                         std::string& found_but_not_executable) {
  for (const std::string& entry : entries) {
    const std::string candidate = entry + "/" + name;
    const Look look = look_at(candidate);
    if (look.is_program()) return candidate;
    if (look.error == 0 && !look.is_directory && found_but_not_executable.empty()) {
      found_but_not_executable = candidate;
    }
  }
  return "";
}

bool is_found(const std::vector<std::string>& entries, const std::string& name) {
  std::string unused;
  return !find_program(entries, name, unused).empty();
}

// As on Debian.
bool only_python3(const std::vector<std::string>& entries) {
  return is_found(entries, "python3") && !is_found(entries, "python");
}

std::string example_of(const CommandPlace& place, std::span<const std::string> words) {
  return place.start + " " + shell_words(words, kExampleBytesMax);
}

// "hvdrun -np 2 python train.py --epochs 3": `start` instead of the command's first word.
std::string example(const CommandPlace& place, std::vector<std::string> start) {
  start.insert(start.end(), place.command.begin() + 1, place.command.end());
  return example_of(place, start);
}

// The advice for a file that is there, as the command `name`, but that the kernel cannot run.
std::string how_to_run(const CommandPlace& place, const std::vector<std::string>& entries,
                       const std::string& name) {
  if (name.ends_with(".py"))
    return "try: " + example(place, {only_python3(entries) ? "python3" : "python", name});
  if (name.ends_with(".sh")) return "try: " + example(place, {"sh", name});
  return "if it is a program, try: chmod +x " + shell_word(name);
}

// What a program that is no script asks to be loaded by, if that is not there.
std::string missing_loader(int fd) {
  const std::string loader = native_loader_of(fd);
  return loader.starts_with('/') && look_at(loader).error == ENOENT ? loader : "";
}

std::string asks_for(const std::string& loader) {
  return "asks to be loaded by " + in_quotes(loader) +
         ", which is not there: it was built for another system; ";
}

UniqueFd open_to_look(const std::string& path) {
  return UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
}

// `path` is where the command's first word leads.
std::optional<Refusal> check_loader(const CommandPlace& place, int fd, const std::string& path) {
  const std::string loader = missing_loader(fd);
  if (loader.empty()) return std::nullopt;
  const std::string& name = place.command[0];
  // What the PATH finds is the host's own: of what is sent it finds nothing.
  const bool found = place.program.empty() && name.find('/') == name.npos;
  return Refusal{kExitNotExecutable, in_quotes(found ? path : name) + " " + asks_for(loader) +
                                         (place.far && place.program.empty() && !found
                                              ? "send it with --ship " + shell_word(name)
                                              : "build it for this one, or link it statically")};
}

// `line` is a script's first one.
std::optional<Refusal> check_interpreter(const CommandPlace& place, std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(" \t", 2), line.size()));
  const std::string interpreter(line.substr(0, line.find_first_of(" \t")));
  if (!interpreter.starts_with('/')) return std::nullopt;
  const std::string asks =
      in_quotes(place.command[0]) + " asks to be run by " + in_quotes(interpreter);
  constexpr const char* kAdvice = "correct its first line or put an interpreter before it";
  if (look_at(interpreter).error == ENOENT)
    return Refusal{kExitNotExecutable, asks + ", which is not there; " + kAdvice};
  const UniqueFd file = open_to_look(interpreter);
  const std::string loader = file ? missing_loader(file.get()) : "";
  if (loader.empty()) return std::nullopt;
  return Refusal{kExitNotExecutable, asks + ", and that " + asks_for(loader) + kAdvice};
}

// Of a file that may be executed: whether the kernel will know how.
std::optional<Refusal> check_first_bytes(const CommandPlace& place, const std::string& path,
                                         const std::vector<std::string>& entries) {
  const UniqueFd file = open_to_look(path);
  char buffer[256];
  const ssize_t count = file ? read(file.get(), buffer, sizeof buffer) : -1;
  if (count < 0) return std::nullopt;  // a program need not be readable
  const std::string_view start(buffer, static_cast<size_t>(count));
  if (start.starts_with("#!")) return check_interpreter(place, start.substr(0, start.find('\n')));
  if (start.starts_with("\x7f"
                        "ELF") &&
      start.size() < sizeof(Elf32_Ehdr))
    return Refusal{kExitNotExecutable,
                   in_quotes(place.command[0]) + " is a program of which only " +
                       std::to_string(start.size()) + " bytes are there; copy it again"};
  if (start.find('\0') != start.npos) return check_loader(place, file.get(), path);
  const std::string& name = place.command[0];
  return Refusal{kExitNotExecutable,
                 in_quotes(name) + " is neither a program nor a script with a #! line; " +
                     (name.ends_with(".py") ? how_to_run(place, entries, name)
                                            : "try: " + example(place, {"sh", name}))};
}

bool is_on_noexec(const std::string& path) {
  struct statvfs facts;
  return statvfs(path.c_str(), &facts) == 0 && (facts.f_flag & ST_NOEXEC) != 0;
}

// `name` is in the user's words what `path` is seen from here.
Refusal not_executable(const CommandPlace& place, const std::vector<std::string>& entries,
                       const std::string& name, const std::string& path) {
  const bool is_script = name.ends_with(".py") || name.ends_with(".sh");  // may be read there
  if (!is_script && is_on_noexec(path))
    return {kExitNotExecutable,
            in_quotes(name) + " lies on a file system mounted noexec; copy it to another"};
  return {kExitNotExecutable, in_quotes(name) + " has no permission to be executed; " +
                                  how_to_run(place, entries, name)};
}

// About the path of a command that leads to nothing.
std::string what_to_do(const CommandPlace& place, int error) {
  if (error == EACCES) return "check its path and who may enter its folders";
  if (!place.far || error != ENOENT) return "check its path";
  if (!place.program.empty()) return "it was sent there and is gone since; start the job again";
  return "copy it there, or send it with --ship " + shell_word(place.command[0]);
}

std::optional<Refusal> check_path_command(const CommandPlace& place,
                                          const std::vector<std::string>& entries) {
  const std::string& name = place.command[0];
  const std::string path = seen_from(place.directory, place.program.empty() ? name : place.program);
  const Look look = look_at(path);
  if (look.error != 0) {
    const int code = look.error == EACCES ? kExitNotExecutable : kExitNotFound;
    return Refusal{code, "command " + in_quotes(name) +
                             (place.directory.empty() ? "" : " in " + in_quotes(place.directory)) +
                             " cannot be started: " + std::strerror(look.error) + "; " +
                             what_to_do(place, look.error)};
  }
  if (look.is_directory) {
    return Refusal{kExitNotExecutable,
                   in_quotes(name) + " is a directory; name the program in it to run"};
  }
  if (!look.is_file)
    return Refusal{kExitNotExecutable, in_quotes(name) + " is no file; name a program to run"};
  if (!look.may_execute) return not_executable(place, entries, name, path);
  return check_first_bytes(place, path, entries);
}

}  // namespace

std::vector<std::string> candidates_of(const CommandPlace& place) {
  const std::string& name = place.command[0];
  if (name.find('/') != name.npos) return {seen_from(place.directory, name)};
  std::vector<std::string> candidates = path_entries(place);
  for (std::string& entry : candidates) entry += "/" + name;
  return candidates;
}

bool is_on_path(const CommandPlace& place) {
  return is_found(path_entries(place), place.command[0]);
}

std::optional<Refusal> check_command(const CommandPlace& place) {
  const std::string& name = place.command[0];
  const std::vector<std::string> entries = path_entries(place);
  const auto is_program = [&](const std::string& word) {
    return word.find('/') == word.npos ? is_found(entries, word)
                                       : look_at(seen_from(place.directory, word)).is_program();
  };
  const auto try_meant = [&]() -> std::optional<Refusal> {
    const std::vector<std::string> meant = meant_command(place.command, is_program);
    const int error = look_at(seen_from(place.directory, name)).error;
    if (meant.empty() || (error != ENOENT && error != ENAMETOOLONG)) return std::nullopt;
    return Refusal{kExitNotFound,
                   "there is no command " + in_quotes(name) + "; try: " + example_of(place, meant)};
  };
  if (name.find('/') != name.npos || !place.program.empty()) {
    const auto refusal = try_meant();
    return refusal ? refusal : check_path_command(place, entries);
  }
  std::string without_permission;
  const std::string program = find_program(entries, name, without_permission);
  if (!program.empty()) return check_first_bytes(place, program, entries);
  if (!without_permission.empty())
    return not_executable(place, entries, without_permission, without_permission);
  if (const auto refusal = try_meant()) return refusal;
  const std::string missing = "command " + in_quotes(name) + " is not found on the PATH; ";
  const std::string in_directory = seen_from(place.directory, name);
  const Look here = look_at(in_directory);
  if (here.is_program()) {
    return Refusal{kExitNotFound, missing + "try: " + example(place, {"./" + name})};
  }
  if (here.error == 0 && !here.is_directory)
    return not_executable(place, entries, name, in_directory);
  if (name == "python" && only_python3(entries))
    return Refusal{kExitNotFound, missing + "try: " + example(place, {"python3"})};
  return Refusal{kExitNotFound,
                 missing + (place.far ? "check its spelling, install it there, or name it by its "
                                        "path here and send that with --ship"
                                      : "check its spelling or give its path")};
}

std::string missing_directory_advice(const CommandPlace& place) {
  const std::string& name = place.command[0];
  const std::string advice = "make that directory there, or name another by --wdir";
  const bool is_ours = place.far && place.program.empty() && name.find('/') != name.npos;
  if (!is_ours || name.starts_with('/')) return advice;
  return advice + "; --ship " + shell_word(name) + " sends the program, which then needs none";
}

}  // namespace hvd
