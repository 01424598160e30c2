#include "cli/exit_code.h"

#include <cerrno>
#include <csignal>

namespace hvd {

ExitStatus exit_status_of(EndCause cause) {
  switch (cause) {
    case EndCause::kNone:
    case EndCause::kRankFailed:
      return {};
    case EndCause::kInterrupted:
      return {128 + SIGINT, SIGINT};
    case EndCause::kTerminated:
      return {128 + SIGTERM, SIGTERM};
    case EndCause::kHangup:
      return {128 + SIGHUP, SIGHUP};
    case EndCause::kQuit:
      return {128 + SIGQUIT, SIGQUIT};
    case EndCause::kReaderGone:
      return {128 + SIGPIPE, SIGPIPE};
    case EndCause::kTimeLimit:
      return {kExitLimit, 0};
    case EndCause::kStartTimeout:
    case EndCause::kAgentLost:
    case EndCause::kOwnFailure:
    case EndCause::kNotStarted:
      break;
  }
  return {kExitOwnFailure, 0};
}

int exit_code_of_spawn(int error) {
  // Want of descriptors, processes or memory says nothing about the command.
  if (error == EMFILE || error == ENFILE || error == EAGAIN || error == ENOMEM)
    return kExitOwnFailure;
  return error == ENOENT || error == ENOTDIR ? kExitNotFound : kExitNotExecutable;
}

}  // namespace hvd
