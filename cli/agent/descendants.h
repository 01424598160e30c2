// Finds and ends everything below the calling process, which must be a child subreaper.
//
// The proof that nothing is left is ECHILD from waitid: below a subreaper every descendant hangs on
// a direct child. The walk over /proc/PID/task/*/children only finds whom to signal; it may miss
// some while they fork, so callers repeat. Only of direct children it misses none, since nobody but
// their parent reaps them: that is the proof where some are spared.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

struct Descendant {
  pid_t pid = 0, parent = 0;
  bool alive = true;             // in one of its threads
  char state = 0;                // of its first thread, as /proc has it; '?': hidden; 0: gone
  unsigned long long began = 0;  // in ticks since the machine did: with `pid` that process alone
  bool stopped() const { return state == 'T'; }  // by a signal
};

// Processes below the caller that are not the job's: what it had started before it was hvdrun or a
// keeper, as a shell has that ends in `x & exec hvdrun …`, puts `> >(tee log)` behind it, or whose
// start files leave something running, and what that left to us: what was there already, or is in
// our session. The job's processes are all in sessions that began below us, and nobody can join
// another session; only an agent is in its keeper's.
class Strangers {
 public:
  Strangers();  // those that are there now
  bool have(pid_t child) const;

 private:
  std::map<pid_t, unsigned long long> earlier_;  // and when each began
};

// A direct child that is left alone, with all below it.
using Spared = std::function<bool(pid_t child)>;

// Descriptors kept open for the walks: a process that has none left could find nobody to end.
class SpareDescriptors {
 public:
  SpareDescriptors() { fill(); }

  // They are closed, so that others can be opened, for as long as the loan lives.
  class Loan {
   public:
    explicit Loan(SpareDescriptors& lender) : lender_(lender) {
      for (UniqueFd& fd : lender.fds_) fd.reset();
    }
    ~Loan() { lender_.fill(); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;

   private:
    SpareDescriptors& lender_;
  };

 private:
  void fill();

  std::array<UniqueFd, 4> fds_;  // a walk has two open; other threads may be quicker to take some
};

std::vector<Descendant> descendants(pid_t root, const Spared& spared = nullptr);

// When the process began, as Descendant has it; 0: there is none.
unsigned long long began(pid_t pid);

// Whether walks, one after the other, prove that there are only dead ones that cannot be reaped, as
// while a tracer holds them: who was dead before a walk began has left its children to the root,
// whose own the walk does not miss.
class OnlyDead {
 public:
  bool see(const std::vector<Descendant>& all);

 private:
  std::set<pid_t> before_;
};

// Signals the process if, once a pidfd holds it, `is_it` says that it is the one that is meant: a
// reused pid is never hit. Where a filter of system calls refuses pidfds that look alone has to do.
// False: it is not, or no descriptor was left; it may be tried again.
bool send_signal(pid_t pid, int signal, const std::function<bool()>& is_it);

// Through a pidfd, and only if `one.pid` still is a child of `one.parent`: a reused pid is never
// hit. False as above: it moves to a subreaper when its parent ends, where the next walk sees it.
// True: it got the signal, may not get it from us, or is gone.
bool signal_descendant(const Descendant& one, int signal);

// Stops all, each before its children are looked for: a loop of forks goes on for no longer than it
// takes to come to it, however many it has left. Walks once, and again while there is somebody new
// and the deadline has not passed.
void stop_descendants(Deadline deadline, const Spared& spared = nullptr);

// Stops all, then kills all; who has come meanwhile is for the next call. Reaps nobody.
void kill_descendants(Deadline deadline, const Spared& spared);

// Stops all, kills all, reaps all; repeats until nobody is left alive or the deadline. `reaped`
// sees every wait status, also of spared children. Returns how many could not be ended.
int end_descendants(std::chrono::milliseconds limit,
                    const std::function<void(pid_t, int status)>& reaped,
                    const Spared& spared = nullptr);

// Reaps what has ended. True when there is no child left at all.
bool reap_all(const std::function<void(pid_t, int status)>& reaped);

// The same, but stops at a child that `wait_for` claims: it has ended too and is reaped in its own
// turn.
enum class Reaped { kNothingLeft, kSomeRun, kStopped };
Reaped reap_until(const std::function<bool(pid_t)>& wait_for,
                  const std::function<void(pid_t, int status)>& reaped);

}  // namespace hvd
