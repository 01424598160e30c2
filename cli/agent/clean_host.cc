#include "cli/agent/clean_host.h"

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "cli/agent/descendants.h"
#include "cli/agent/process_state.h"
#include "cli/read_file.h"
#include "cli/ship/ship_store.h"
#include "cli/ssh/remote_script.h"
#include "rendezvous/credentials.h"
#include "runtime/base/deadline.h"
#include "runtime/base/env.h"

namespace hvd {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kKeeper = "hvd-keeper", kAgent = "hvd-agent";
constexpr std::chrono::milliseconds kEndLimit{5000};
constexpr auto kOldCopy = std::chrono::hours(24 * 30), kOldScrap = std::chrono::hours(24);
constexpr size_t kSmallBytes = 64u << 10;

std::string proc(pid_t pid, const char* name) {
  return "/proc/" + std::to_string(pid) + "/" + name;
}

uint64_t pid_namespace(const std::string& process) {
  struct stat facts{};
  return stat((process + "/ns/pid").c_str(), &facts) == 0 ? uint64_t(facts.st_ino) : 0;
}

std::string target_of(const std::string& link) {
  std::error_code unreadable;
  return fs::read_symlink(link, unreadable).string();
}

// kKeeper, kAgent, or nothing.
std::string_view role_of(pid_t pid) {
  struct stat facts{};
  if (stat(proc(pid, "").c_str(), &facts) != 0 || facts.st_uid != geteuid()) return {};
  const std::string comm = read_file(proc(pid, "comm"), kSmallBytes).bytes;
  const std::string_view role = comm == "hvd-keeper\n"  ? kKeeper
                                : comm == "hvd-agent\n" ? kAgent
                                                        : std::string_view();
  if (role.empty()) return {};
  // It has written its name over its arguments, so that nothing else is left of them.
  std::string line = read_file(proc(pid, "cmdline"), kSmallBytes).bytes;
  line.erase(std::find_if(line.rbegin(), line.rend(), [](char c) { return c != '\0'; }).base(),
             line.end());
  const uint64_t own = pid_namespace("/proc/self");
  std::string program = target_of(proc(pid, "exe"));
  constexpr std::string_view kDeleted = " (deleted)";
  if (program.ends_with(kDeleted)) program.resize(program.size() - kDeleted.size());
  const bool ours = line == role && own != 0 && pid_namespace(proc(pid, "")) == own &&
                    fs::path(program).filename() == "hvdrun";
  return ours ? role : std::string_view();
}

std::vector<pid_t> all_processes() {
  std::vector<pid_t> all;
  std::error_code gone;
  for (fs::directory_iterator one("/proc", gone), end; !gone && one != end; one.increment(gone)) {
    const std::string name = one->path().filename();
    pid_t pid = 0;
    const auto [stop, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error == std::errc() && *stop == '\0') all.push_back(pid);
  }
  return all;
}

// The topmost of what is left of one job here, and its agent if that lives.
struct Left {
  pid_t root = 0, agent = 0;
  bool lives = false;
};

bool ends_orphans(pid_t pid) {
  const std::string name = read_file(proc(pid, "comm"), kSmallBytes).bytes;
  return pid <= 1 || name == "systemd\n" || name == "init\n";
}

std::vector<Left> find_left() {
  std::map<pid_t, std::string_view> roles;
  for (const pid_t pid : all_processes())
    if (const std::string_view role = role_of(pid); !role.empty()) roles[pid] = role;
  std::vector<Left> all;
  for (const auto& [pid, role] : roles) {
    const auto state = read_process_state(pid);
    if (!state || state->letter == 'Z') continue;
    if (role == kAgent) {
      const auto parent = roles.find(state->parent);
      if (parent == roles.end() || parent->second != kKeeper) all.push_back({pid, pid, false});
      continue;
    }
    Left left{pid, 0, !ends_orphans(state->parent)};
    for (const Descendant& one : descendants(pid))
      if (one.parent == pid && role_of(one.pid) == kAgent) left.agent = one.pid;
    all.push_back(left);
  }
  return all;
}

struct Known {
  pid_t pid;
  unsigned long long began;
  bool operator<(const Known& other) const { return pid < other.pid; }
};

void send(const Known& one, int signal) {
  const UniqueFd pidfd(int(syscall(SYS_pidfd_open, one.pid, 0)));
  if (pidfd && began(one.pid) == one.began)
    syscall(SYS_pidfd_send_signal, pidfd.get(), signal, nullptr, 0);
}

bool is_over(const Known& one) {
  const auto state = read_process_state(one.pid);
  return !state || state->letter == 'Z' || state->letter == 'X' || began(one.pid) != one.began;
}

// All are stopped before one is killed, so that nobody starts another meanwhile. Returns how many
// there were, and how many could not be ended.
std::pair<int, int> end_below(pid_t root) {
  std::set<Known> known{{root, began(root)}};
  for (bool more = true; more;) {
    more = false;
    for (const Known& one : known) send(one, SIGSTOP);
    for (const Known& one : std::vector(known.begin(), known.end()))
      for (const Descendant& below : descendants(one.pid))
        more |= known.insert({below.pid, below.began}).second;
  }
  for (const Known& one : known) send(one, SIGKILL);
  const Deadline deadline = Deadline::in(kEndLimit);
  const auto left = [&] {
    return int(
        std::count_if(known.begin(), known.end(), [](const Known& one) { return !is_over(one); }));
  };
  while (left() > 0 && !deadline.passed()) poll(nullptr, 0, 5);
  return {int(known.size()), left()};
}

bool is_older(const fs::path& path, std::chrono::hours age) {
  struct stat facts{};
  if (lstat(path.c_str(), &facts) != 0 || facts.st_uid != geteuid()) return false;
  return WallClock::now() - WallClock::from_time_t(facts.st_mtim.tv_sec) > age;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> all;
  std::error_code unreadable;
  for (fs::directory_iterator one(folder, unreadable), end; !unreadable && one != end;
       one.increment(unreadable))
    all.push_back(one->path());
  return all;
}

void remove(const fs::path& path, uint64_t bytes, const CleanOrder& order,
            proto::CleanReport& report) {
  std::error_code failed;
  if (!order.dry_run) fs::remove_all(path, failed);
  if (failed) return;
  report.set_copies(report.copies() + 1);
  report.set_copy_bytes(report.copy_bytes() + bytes);
}

void remove_copies(const CleanOrder& order, const std::string& build, proto::CleanReport& report) {
  std::set<std::string> running;
  for (const pid_t pid : all_processes()) running.insert(target_of(proc(pid, "exe")));
  const auto home = env::get("HOME");
  if (!home || home->empty()) return;
  for (const fs::path& folder : entries_of(fs::path(*home) / ".cache" / "hvdrun")) {
    const fs::path copy = folder / "hvdrun";
    const bool is_build = folder.filename().string().find_first_not_of("0123456789abcdef") ==
                          std::string::npos;  // what else is in there is not a host's copy
    std::error_code missing;
    const uint64_t bytes = fs::file_size(copy, missing);
    if (!is_build || missing || folder.filename() == build || !is_older(copy, kOldCopy) ||
        running.contains(copy.string()))
      continue;
    remove(folder, bytes, order, report);
  }
}

// What a start that was broken off by a power failure has made for itself.
void remove_scraps(const CleanOrder& order, proto::CleanReport& report) {
  std::set<std::string> places = {"/tmp", "/var/tmp", "/dev/shm"};
  for (const char* name : {"TMPDIR", "XDG_RUNTIME_DIR"})
    if (const auto place = env::get(name)) places.insert(*place);
  for (const std::string& place : places)
    for (const fs::path& one : entries_of(place)) {
      const std::string name = one.filename();
      const bool ours =
          name.starts_with(kOnceFolder) && name.size() == kOnceFolder.size() + 16 &&
          name.find_first_not_of("0123456789abcdef", kOnceFolder.size()) == std::string::npos;
      std::error_code unreadable;
      if (!ours || fs::is_symlink(one) || !fs::is_directory(one, unreadable) ||
          !is_older(one, kOldScrap))
        continue;
      const auto bytes = fs::file_size(one / name, unreadable);
      remove(one, unreadable ? 0 : bytes, order, report);
    }
}

void remove_shipments(const CleanOrder& order, proto::CleanReport& report) {
  for (const std::string& place : ship_places()) {
    const int64_t unused_s = std::chrono::seconds(kOldCopy).count();
    const ShipRemoval removal = clean_store(place, unused_s, order.dry_run);
    report.set_shipments(report.shipments() + removal.trees);
    report.set_shipment_bytes(report.shipment_bytes() + removal.bytes);
  }
}

std::string plural(int64_t count, const char* one, const char* many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

}  // namespace

proto::CleanReport clean_host(const CleanOrder& order, const std::string& build) {
  proto::CleanReport report;
  for (const Left& left : find_left()) {
    proto::CleanReport::Job& job = *report.add_jobs();
    job.set_root(left.root);
    job.set_agent(left.agent);
    job.set_lives(left.lives);
    const auto below = descendants(left.root);
    job.set_below(int(std::count_if(below.begin(), below.end(), [&](const Descendant& one) {
      return one.alive && one.pid != left.agent;
    })));
    if (order.dry_run || (left.lives && !order.all)) continue;
    job.set_ended(true);
    job.set_stuck(end_below(left.root).second);
  }
  remove_copies(order, build, report);
  remove_scraps(order, report);
  remove_shipments(order, report);
  return report;
}

std::vector<std::string> describe(const proto::CleanReport& report, const CleanOrder& order) {
  std::vector<std::string> lines;
  for (const proto::CleanReport::Job& job : report.jobs()) {
    const std::string what = "(" + std::string(job.agent() != 0 ? "agent " : "keeper ") +
                             std::to_string(job.agent() != 0 ? job.agent() : job.root()) + " and " +
                             plural(job.below(), "process", "processes") + " of its ranks)";
    const std::string whose = job.lives() ? "a job that lives " : "what a job had left ";
    if (job.ended())
      lines.push_back("ended " + whose + what +
                      (job.stuck() > 0
                           ? "; " + plural(job.stuck(), "process", "processes") + " cannot be ended"
                           : ""));
    else if (job.lives() && !order.all)
      lines.push_back("left alone a job that lives " + what + "; --all ends it, too");
    else
      lines.push_back("would end " + whose + what);
  }
  if (report.copies() > 0)
    lines.push_back((order.dry_run ? "would remove " : "removed ") +
                    plural(report.copies(), "old copy", "old copies") + " of hvdrun, " +
                    std::to_string(report.copy_bytes() >> 20) + " MiB");
  if (report.shipments() > 0 || report.shipment_bytes() > 0)
    lines.push_back(std::string(order.dry_run ? "would remove " : "removed ") +
                    std::to_string(report.shipment_bytes() >> 20) +
                    " MiB that were shipped, and that nobody has used for long");
  if (lines.empty()) lines.push_back("nothing was left");
  return lines;
}

}  // namespace hvd
