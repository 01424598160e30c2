// What runs on another host before the agent does: a shell script that finds the agent or takes it
// from its standard input, and becomes it.
//
// Pure. The script needs no more than a shell with mkdir, chmod, cat, head, id, ls, wc and rm, says
// what it does in lines that begin with kRemoteMark, and has no byte of standard input or output
// that is not its own: what the login shell's start files print comes before, and what they read
// was sent for that (RemoteStart).
//
//   machine NAME   this host cannot run the agent; ends
//   found          the agent is there, and is started
//   need           asks for a line "BYTES SHA256" and that many bytes; blank lines are passed over
//   copied         they are there and have that sum; the agent is started
//   damaged        they have not, or cannot be run; ends
//   nowhere        no folder takes them; ends. Each has been tried with a `need` of its own where
//                  only the bytes did not fit
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hvd {

inline constexpr std::string_view kRemoteMark = "hvdrun-remote: ";
// How the name of a folder begins that is there for one start alone.
inline constexpr std::string_view kOnceFolder = "hvdrun.";

struct RemoteAgent {
  std::string name;                              // of this very file: letters and digits
  uint64_t bytes = 0;                            // of it
  std::string machine;                           // as uname -m has it
  std::vector<std::string> role = {"--remote"};  // words behind `agent`: lower case, digits, dashes
  bool anew = false;                             // what is there is not started, but replaced
};

// One line for the login shell of any user: bash, dash, fish and csh read it alike, since it holds
// no quote but its own two, no backslash and no line feed, and a blank behind each exclamation
// mark. `unique` names what it makes until it is whole, and differs between any two that run:
// letters and digits.
std::string remote_script(const RemoteAgent& agent, std::string_view unique);

}  // namespace hvd
