#include "runtime/agent_above.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "rendezvous/agent_socket.h"
#include "runtime/base/unique_fd.h"

namespace hvd {
namespace {

struct Process {
  std::string name;
  pid_t parent = 0;
};

// Plain read(): a stream throws when the process goes away under it.
Process read_process(pid_t pid) {
  const UniqueFd fd(open(("/proc/" + std::to_string(pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  char text[512];
  const ssize_t length = fd ? read(fd.get(), text, sizeof text - 1) : -1;
  if (length <= 0) return {};
  text[length] = 0;
  // The name in parentheses may hold anything, also parentheses.
  const char* begin = std::strchr(text, '(');
  const char* end = std::strrchr(text, ')');
  Process process;
  if (begin == nullptr || end == nullptr || std::sscanf(end + 1, " %*c %d", &process.parent) != 1)
    return {};
  process.name.assign(begin + 1, end);
  return process;
}

}  // namespace

pid_t agent_above(pid_t pid) {
  constexpr int kMostGenerations = 64;  // a parent that ends meanwhile may lead anywhere
  for (int i = 0; i < kMostGenerations && pid > 1; ++i) {
    const Process process = read_process(pid);
    if (process.name == kAgentProcessName) return pid;
    pid = process.parent;
  }
  return 0;
}

std::string lost_environment_warning(pid_t agent) {
  if (agent == 0) return "";
  return "hvdrun's agent (process " + std::to_string(agent) +
         ") started this program, but HVD_AGENT, by which ranks find each other, is not set: "
         "something between the two clears the environment (env -i, sudo), and each rank runs for "
         "itself, as a world of one; let it pass HVD_AGENT on";
}

}  // namespace hvd
