// Looks why ranks cannot be started by a command, on the machine that this runs on: hvdrun's own
// before a job, an agent's after exec has failed.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace hvd {

// Why hvdrun ends without having started anything, or a rank did not start.
struct Refusal {
  int exit_code;        // 2: usage, 125: the machine, 126 and 127: the command
  std::string message;  // one line
};

struct CommandPlace {
  std::span<const std::string> command;  // one word at least
  std::string program;                   // where the first one was shipped to; empty: it was not
  std::string directory;                 // where ranks start; empty: where this process is
  std::string path;                      // their PATH
  std::string start;                     // what goes before a command in advice: "hvdrun -np 2"
  bool far = false;                      // not hvdrun's own host: --ship may help
};

// What is wrong with it and what to do; nothing: nothing is known to be.
std::optional<Refusal> check_command(const CommandPlace& place);

// What to do where the directory in which ranks start is not there.
std::string missing_directory_advice(const CommandPlace& place);

// Where its first word may be: at one path, or where it has no slash in each of the PATH's folders.
std::vector<std::string> candidates_of(const CommandPlace& place);

// Whether the PATH leads to a program of the first word's name.
bool is_on_path(const CommandPlace& place);

}  // namespace hvd
