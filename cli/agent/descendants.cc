#include "cli/agent/descendants.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>

namespace hvd {
namespace {

std::string read_small(const char* path) {
  UniqueFd fd(open(path, O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[4096];
  for (ssize_t n; fd && (n = read(fd.get(), buffer, sizeof buffer)) > 0;)
    text.append(buffer, size_t(n));
  return text;
}

constexpr char kHidden = '?';

struct Status {
  pid_t parent = 0;
  char state = 0;  // 0: gone
  int threads = 0;
  unsigned long long began = 0;
  // A process whose first thread has left alone shows as a zombie too, and runs on in the others.
  bool alive() const { return state != 0 && state != 'X' && (state != 'Z' || threads > 1); }
};

// Where /proc shows processes to those alone who may trace them (hidepid), one that nobody may, as
// many that keep secrets make themselves, is only known to be there.
Status status_of(pid_t pid) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  std::string text = read_small(path);
  size_t close = text.rfind(')');  // the name may hold anything
  Status status;
  if (close != std::string::npos)
    std::sscanf(text.c_str() + close + 1,
                " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %d %*d %llu",
                &status.state, &status.parent, &status.threads, &status.began);
  else if (kill(pid, 0) == 0 || errno == EPERM)
    status.state = kHidden;
  return status;
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  std::string folder = "/proc/" + std::to_string(parent) + "/task";
  DIR* tasks = opendir(folder.c_str());
  if (!tasks) return children;
  while (dirent* entry = readdir(tasks)) {
    if (entry->d_name[0] == '.') continue;
    std::string text = read_small((folder + "/" + entry->d_name + "/children").c_str());
    for (char* at = text.data(); *at;) {
      char* end;
      pid_t pid = pid_t(std::strtol(at, &end, 10));
      if (end == at) break;
      children.push_back(pid);
      at = *end ? end + 1 : end;
    }
  }
  closedir(tasks);
  return children;
}

using Visit = std::function<void(const Descendant&)>;

// All below `root`, of whom no more is known than pid and parent. Each is visited before its own
// children are looked for.
std::vector<Descendant> walk_down(pid_t root, const Spared& spared, const Visit& visit) {
  std::vector<Descendant> found;
  std::set<pid_t> known;
  const auto add_children = [&](pid_t parent) {
    for (const pid_t pid : children_of(parent))
      if (!(spared && parent == root && spared(pid)) && known.insert(pid).second)
        found.push_back({pid, parent});
  };
  add_children(root);
  for (size_t i = 0; i < found.size(); ++i) {
    const Descendant one = found[i];
    if (visit) visit(one);
    add_children(one.pid);
  }
  return found;
}

// Of its own children the kernel tells everybody.
bool is_child(pid_t pid, pid_t parent) {
  siginfo_t info;
  if (parent == getpid())
    return waitid(P_PID, id_t(pid), &info, WEXITED | WNOHANG | WNOWAIT | __WALL) == 0;
  const Status status = status_of(pid);
  if (status.state != kHidden) return status.parent == parent;
  const std::vector<pid_t> children = children_of(parent);
  return std::find(children.begin(), children.end(), pid) != children.end();
}

}  // namespace

void SpareDescriptors::fill() {
  for (UniqueFd& fd : fds_)
    if (!fd) fd.reset(eventfd(0, EFD_CLOEXEC));
}

unsigned long long began(pid_t pid) { return status_of(pid).began; }

std::vector<Descendant> descendants(pid_t root, const Spared& spared) {
  std::vector<Descendant> found = walk_down(root, spared, nullptr);
  for (Descendant& one : found) {
    const Status status = status_of(one.pid);
    one.alive = status.alive();
    one.state = status.state;
    one.began = status.began;
  }
  return found;
}

Strangers::Strangers() {
  for (const Descendant& one : descendants(getpid())) earlier_[one.pid] = one.began;
}

bool Strangers::have(pid_t child) const {
  const auto earlier = earlier_.find(child);
  return (earlier != earlier_.end() && earlier->second == began(child)) ||
         getsid(child) == getsid(0);
}

bool send_signal(pid_t pid, int signal, const std::function<bool()>& is_it) {
  const UniqueFd pidfd(int(syscall(SYS_pidfd_open, pid, 0)));
  const bool refused =
      !pidfd && (errno == ENOSYS || errno == EPERM);  // by a filter of system calls
  if (!pidfd && !refused) return errno == ESRCH;
  if (!is_it()) return false;
  if (refused)
    kill(pid, signal);
  else
    syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0);
  return true;
}

bool signal_descendant(const Descendant& one, int signal) {
  return send_signal(one.pid, signal, [&] { return is_child(one.pid, one.parent); });
}

bool OnlyDead::see(const std::vector<Descendant>& all) {
  std::set<pid_t> dead;
  for (const Descendant& one : all)
    if (!one.alive && one.state != 0) dead.insert(one.pid);
  const bool proven = !all.empty() && dead.size() == all.size() &&
                      std::includes(before_.begin(), before_.end(), dead.begin(), dead.end());
  before_ = std::move(dead);
  return proven;
}

bool reap_all(const std::function<void(pid_t, int status)>& reaped) {
  while (true) {
    int status = 0;
    pid_t pid = waitpid(-1, &status, WNOHANG | __WALL);
    if (pid == 0) return false;
    if (pid < 0) return errno == ECHILD;
    if (reaped) reaped(pid, status);
  }
}

Reaped reap_until(const std::function<bool(pid_t)>& wait_for,
                  const std::function<void(pid_t, int status)>& reaped) {
  while (true) {
    siginfo_t info{};
    if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL) != 0)
      return errno == ECHILD ? Reaped::kNothingLeft : Reaped::kSomeRun;
    if (info.si_pid == 0) return Reaped::kSomeRun;
    if (wait_for(info.si_pid)) return Reaped::kStopped;
    int status = 0;
    if (waitpid(info.si_pid, &status, WNOHANG | __WALL) == info.si_pid && reaped)
      reaped(info.si_pid, status);
  }
}

void stop_descendants(Deadline deadline, const Spared& spared) {
  std::set<pid_t> stopped;
  for (bool more = true; more; more = more && !deadline.passed()) {
    more = false;
    walk_down(getpid(), spared, [&](const Descendant& one) {
      if (stopped.contains(one.pid)) return;
      more = true;
      if (signal_descendant(one, SIGSTOP)) stopped.insert(one.pid);
    });
  }
}

void kill_descendants(Deadline deadline, const Spared& spared) {
  stop_descendants(deadline, spared);
  for (const Descendant& one : descendants(getpid(), spared))
    if (one.alive) signal_descendant(one, SIGKILL);
}

int end_descendants(std::chrono::milliseconds limit,
                    const std::function<void(pid_t, int status)>& reaped, const Spared& spared) {
  Deadline deadline = Deadline::in(limit);
  const auto walk = [&] { return descendants(getpid(), spared); };
  OnlyDead only_dead;
  const auto nobody = [&] {
    if (reap_all(reaped)) return true;
    const auto all = walk();
    return (spared && all.empty()) || only_dead.see(all);
  };
  for (int round = 0;; ++round) {
    if (nobody()) return 0;
    kill_descendants(deadline, spared);
    if (round == 0) deadline = Deadline::in(limit);  // of which the walks took their part
    if (nobody()) return 0;
    if (deadline.passed()) break;
    poll(nullptr, 0, round < 20 ? 1 : 20);
  }
  if (nobody()) return 0;
  const auto all = walk();
  if (all.empty()) return 1;  // somebody is there, but the walk could not see them
  return int(std::count_if(all.begin(), all.end(), [](const auto& one) { return one.alive; }));
}

}  // namespace hvd
