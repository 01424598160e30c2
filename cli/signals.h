// Signals of hvdrun and agent: blocked before the first thread, read through a signalfd.
//
// What was ignored at start (nohup; INT and QUIT of background jobs) is left out and stays ignored:
// a blocked and ignored signal would still reach the signalfd.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "runtime/base/unique_fd.h"

namespace hvd {

class SignalReader {
 public:
  SignalReader(std::initializer_list<int> signals, unsigned long long ignored_at_start);
  int fd() const { return fd_.get(); }
  std::vector<int> take();  // coalesced, as signals are

 private:
  UniqueFd fd_;
};

// A broken pipe and a file that may not grow are errors of the write, and children can be waited
// for, also where whoever started us ignored their ends. Before the first spawn().
void settle_signals();

std::string signal_name(int signal);  // "SIGSEGV"

// Default action, unblocked, raised: the shell sees the real thing.
[[noreturn]] void die_by(int signal);
// The same for a SIGTSTP that is pending: returns after SIGCONT; at once in an orphaned process
// group, or when none is pending any more, for a SIGCONT takes it back.
void let_tstp_stop();

}  // namespace hvd
