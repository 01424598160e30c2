// What /proc says about one process. Threads: any; looking may block for long while a process ends.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace hvd {

struct ProcessState {
  char letter = '?';  // R S D T t Z …, of its first task
  pid_t parent = 0;
  bool stopped() const { return letter == 'T'; }
  bool held_by_debugger() const { return letter == 't'; }
};

// Nothing when there is no such process.
std::optional<ProcessState> read_process_state(pid_t pid);

bool held_by_debugger(pid_t pid);

// Of /proc, or of a process's task/.
std::vector<pid_t> numbers_in(const std::string& folder);
// One of its threads; 0: it is dead. A process runs on when its first thread has ended, under whose
// number /proc then tells little more than its name.
pid_t living_thread(pid_t pid);

// The process itself, its parent and so on up to and including `root`; empty when `root` is not
// among them.
std::vector<pid_t> ancestry(pid_t pid, pid_t root);

// Every task of the process is in exit and never runs the program's code again, or it is gone. The
// pid must not be reaped yet. Reading may take the last reference to the memory of the process,
// and then frees it, 0.1 s per GiB: call it where that holds nobody up.
bool all_tasks_exiting(pid_t pid);

// Of a process whose tasks are all in exit, or that is dead and not reaped: by exit status 0. False
// where /proc does not say. The same holds of looking.
bool exits_well(pid_t pid);
// As waitpid() tells it of a process that is ending or dead. Once it was waited for only its pidfd
// (-1: none) knows, and that since Linux 6.15; else nothing.
std::optional<int> wait_status_of(pid_t pid, int pidfd);

}  // namespace hvd
