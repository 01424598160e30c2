#include "cli/agent/killed.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "cli/agent/descendants.h"
#include "cli/agent/process_state.h"
#include "runtime/base/unique_fd.h"

namespace hvd {
namespace {

constexpr int kKillWalksMax = 10;

void send(const Known& one, int signal) {
  send_signal(one.pid, signal, [&] { return began(one.pid) == one.began; });
}

// Its sockets are closed, too, by which orphans are told. Where a filter of system calls refuses
// pidfds, that none of its threads lives is all there is to see.
bool is_over(const Known& one) {
  const UniqueFd pidfd(int(syscall(SYS_pidfd_open, one.pid, 0)));
  if (began(one.pid) != one.began) return true;
  pollfd ended{pidfd.get(), POLLIN, 0};
  return pidfd ? poll(&ended, 1, 0) == 1 : living_thread(one.pid) == 0;
}

std::set<Known> kill_below(const std::vector<Known>& roots) {
  std::set<Known> known(roots.begin(), roots.end());
  bool more = true;
  for (int round = 0; more && round < kKillWalksMax; ++round) {
    more = false;
    for (const Known& one : known) send(one, SIGSTOP);
    for (const Known& one : std::vector(known.begin(), known.end()))
      for (const Descendant& below : descendants(one.pid))
        more |= known.insert({below.pid, below.began}).second;
  }
  for (const Known& one : known) send(one, SIGKILL);
  return known;
}

int lives(const std::set<Known>& killed) {
  return int(std::ranges::count_if(killed, [](const Known& one) { return !is_over(one); }));
}

}  // namespace

Known know(pid_t pid) { return {pid, began(pid)}; }

int Killed::add(proto::CleanReport::Job& job, const std::vector<Known>& roots) {
  job.set_ended(true);
  std::set<Known>& of_job = of_jobs_[&job];
  const size_t before = of_job.size();
  of_job.merge(kill_below(roots));
  return int(of_job.size() - before);
}

void Killed::await(Deadline deadline) {
  for (const auto& [job, killed] : of_jobs_) {
    int stuck = lives(killed);
    for (; stuck > 0 && !deadline.passed(); stuck = lives(killed)) poll(nullptr, 0, 5);
    job->set_stuck(stuck);
  }
}

}  // namespace hvd
