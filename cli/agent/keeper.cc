#include "cli/agent/keeper.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <string>

#include "cli/agent/descendants.h"
#include "cli/agent/keeper_words.h"
#include "cli/pipe.h"
#include "cli/process_name.h"
#include "cli/signals.h"
#include "rendezvous/agent_socket.h"
#include "runtime/base/deadline.h"
#include "runtime/base/fault_point.h"
#include "runtime/base/last_words.h"

namespace hvd {
namespace {

constexpr std::chrono::milliseconds kKillLimit{20'000};
constexpr std::chrono::milliseconds kKillOnce{300};  // who has been tried for long
constexpr std::chrono::milliseconds kReaderLimit{1000};

struct Ending {
  int status = 0;
  bool known = false;
};

// Not in vain for long: hvdrun, which reads it, may be stopped or slow.
void say(const std::string& words) { write_last_words(words + "\n", kReaderLimit); }

// Kills what is left below us, says what was done if it was anything but a plain end, and ends.
[[noreturn]] void finish(pid_t agent, const Strangers& strangers, Ending ending, bool too_late) {
  fault_point("keeper_finish");
  int ended = 0;
  const bool tried =
      ending.known && WIFEXITED(ending.status) && WEXITSTATUS(ending.status) == kSomeAreStuck;
  const auto limit = tried ? kKillOnce : kKillLimit;
  std::set<pid_t> spared;  // who ends meanwhile, by itself, was not ended
  const auto note_end = [&](pid_t pid, int status) {
    if (pid == agent)
      ending = {status, true};
    else if (!spared.contains(pid))
      ++ended;
  };
  const int left = end_descendants(limit, note_end, [&](pid_t child) {
    if (child == agent || !strangers.have(child)) return false;
    spared.insert(child);
    return true;
  });
  const bool plain = ending.known && WIFEXITED(ending.status) && !too_late;
  if (plain && (tried || (ended == 0 && left == 0))) _exit(WEXITSTATUS(ending.status));
  std::string how;
  if (too_late)
    how = "outlived its lease and was killed";
  else if (WIFSIGNALED(ending.status))
    how = "was killed by " + signal_name(WTERMSIG(ending.status));
  else
    how = "exited with code " + std::to_string(WEXITSTATUS(ending.status));
  std::string words = agents_end(agent, how);
  if (ended > 0)
    words += "; ended " + std::to_string(ended) + (ended == 1 ? " process" : " processes") +
             " that it left";
  if (left > 0) words += "; " + std::to_string(left) + " cannot be ended";
  say(words);
  _exit(125);
}

[[noreturn]] void keep(pid_t agent, const Strangers& strangers, int child_ends) {
  bool leased = true;
  Deadline fence = Deadline::never();
  Ending ending;
  while (true) {
    pollfd fds[2] = {{leased ? 0 : -1, POLLRDHUP, 0}, {child_ends, POLLIN, 0}};
    poll(fds, 2, fence.poll_timeout_ms());
    signalfd_siginfo info;
    [[maybe_unused]] const ssize_t cleared = read(child_ends, &info, sizeof info);
    reap_all([&](pid_t pid, int status) {
      if (pid == agent) ending = {status, true};
    });
    if (ending.known) finish(agent, strangers, ending, false);
    if (leased && fds[0].revents != 0) {
      leased = false;
      fence = Deadline::in(kEndByItself);
      fault_point("keeper_lease_lost");
    }
    if (fence.passed()) finish(agent, strangers, ending, true);
  }
}

}  // namespace

Kept become_kept(int argc, char** argv, int control_fd) {
  setsid();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  const Strangers strangers;
  prctl(PR_SET_PDEATHSIG, SIGCONT);  // a stopped keeper has to see hvdrun's end too
  set_process_name(argc, argv, "hvd-keeper");
  Pipe pipe = make_pipe();
  UniqueFd null = open_null();
  sigset_t set, before;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  sigprocmask(SIG_BLOCK, &set, &before);
  const int child_ends = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  fault_point("keeper_before_fork");
  const pid_t keeper = getpid();
  const pid_t agent = fork();
  if (agent < 0 || child_ends < 0) {
    say("keeper: cannot start the agent: " + error_text(errno));
    _exit(125);
  }
  if (agent == 0) {
    set_process_name(argc, argv, kAgentProcessName);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_PDEATHSIG, SIGCONT);  // nor would a stopped agent see that both are gone
    close(child_ends);
    null.reset();
    sigprocmask(SIG_SETMASK, &before, nullptr);
    return {std::move(pipe.write), keeper};
  }
  pipe.write.reset();
  // The agent's channels are its alone: if we held them too, hvdrun would not see its end.
  dup2(null.get(), STDOUT_FILENO);
  if (control_fd >= 0) close(control_fd);
  fault_point("keeper_started");
  keep(agent, strangers, child_ends);
}

}  // namespace hvd
