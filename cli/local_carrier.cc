#include "cli/local_carrier.h"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "cli/pipe.h"
#include "cli/subprocess.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

Error cannot(const std::string& what, int error) {
  return Error(ErrorCode::kUnavailable, "cannot " + what + ": " + error_text(error));
}

}  // namespace

AgentChannels LocalCarrier::start_agent(const Host& host) {
  Pipe lease = make_pipe(), output = make_pipe(), words = make_pipe();
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw cannot("make a socket pair", errno);
  UniqueFd ours(ends[0]), theirs(ends[1]);
  SpawnOptions options;
  options.program = "/proc/self/exe";  // the same file, even if it was replaced on disk meanwhile
  // Under a number that is free here: those that are not are the user's, and the ranks' in the end.
  options.argv = {"hvd-keeper", "agent", std::to_string(theirs.get())};
  options.environment = environ;
  options.stdin_fd = lease.read.get();
  options.stdout_fd = output.write.get();
  options.stderr_fd = words.write.get();
  options.extra_fd = theirs.get();
  // Its own session, so that Ctrl-C does not reach it. No parent-death signal that ends it: our
  // death reaches the agent as the end of its lease, and the keeper asks for SIGCONT itself.
  options.new_session = true;
  for (const int one : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})
    options.ignored_signals |= 1ull << (one - 1);
  const SpawnResult result = spawn(options);
  if (result.pid == 0)
    throw cannot(std::string("start the agent on ") + host.name + " (" + result.step + ")",
                 result.error);
  set_nonblocking(lease.write.get());
  set_nonblocking(output.read.get());
  set_nonblocking(words.read.get());
  return {result.pid, std::move(lease.write), std::move(output.read), std::move(words.read),
          std::move(ours)};
}

}  // namespace hvd
