#include "cli/agent/clean_host.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "cli/agent/descendants.h"
#include "cli/agent/killed.h"
#include "cli/agent/process_state.h"
#include "cli/host_identity.h"
#include "cli/quoted.h"
#include "cli/read_file.h"
#include "cli/ship/folders.h"
#include "cli/ship/ship_cleaning.h"
#include "cli/ship/ship_offer.h"
#include "cli/ship/ship_store.h"
#include "cli/ssh/remote_script.h"
#include "rendezvous/agent_socket.h"
#include "rendezvous/credentials.h"
#include "runtime/base/deadline.h"
#include "runtime/base/env.h"

namespace hvd {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kKeeper = "hvd-keeper", kAgent = kAgentProcessName;
// Of what is killed, and of what comes meanwhile.
constexpr std::chrono::milliseconds kEndLimit{5000}, kLaterLimit{500};
constexpr std::chrono::milliseconds kAgentsEnd{
    2500};  // of whose lease has ended: 1.5 s, and reaping
constexpr auto kOldCopy = std::chrono::hours(24 * 30), kOldScrap = std::chrono::hours(24);
constexpr size_t kSmallBytes = 64u << 10;
constexpr size_t kEnvironmentBytes = 8u << 20;  // the kernel takes 6 MiB
constexpr size_t kSocketsBytes = 64u << 20;     // a line for each on the host
constexpr size_t kAgentNameBytes = 32;          // make_agent_name()
constexpr int kOrphanRounds = 10;               // who starts others for ever is not outrun
constexpr size_t kPathShownMax = 400;

// Without --job: end_jobs(), then all rounds of end_orphans().
static_assert(2 * kEndLimit + (kOrphanRounds - 1) * kLaterLimit <= kCleaningMost);
// With it look_for_one_job() has one deadline, of which its first pass leaves this much: for agents
// that end, and for what its second pass still finds.
constexpr std::chrono::milliseconds kAfterFirstPass = kAgentsEnd + kLaterLimit;
static_assert(kAfterFirstPass < kOneJobMost);

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

// Of this user and this pid namespace.
bool is_own(pid_t pid) {
  struct stat facts{};
  if (stat(proc(pid, "").c_str(), &facts) != 0 || facts.st_uid != geteuid()) return false;
  const uint64_t own = pid_namespace("/proc/self");
  return own != 0 && pid_namespace(proc(pid, "")) == own;
}

std::vector<pid_t> all_processes() { return numbers_in("/proc"); }

// By the file that it runs: who calls it by a link to it does not change that.
bool is_hvdrun(pid_t thread) {
  std::string program = target_of(proc(thread, "exe"));
  constexpr std::string_view kDeleted = " (deleted)";
  if (program.ends_with(kDeleted)) program.resize(program.size() - kDeleted.size());
  return fs::path(program).filename() == "hvdrun";
}

// kKeeper, kAgent, or nothing.
std::string_view role_of(pid_t pid) {
  std::string comm = read_file(proc(pid, "comm"), kSmallBytes).bytes;
  if (comm.ends_with('\n')) comm.pop_back();
  const std::string_view role = comm == kKeeper  ? kKeeper
                                : comm == kAgent ? kAgent
                                                 : std::string_view();
  const pid_t thread = role.empty() ? 0 : living_thread(pid);
  if (thread == 0) return {};
  // It has written its name over its arguments, so that nothing else is left of them.
  std::string line = read_file(proc(thread, "cmdline"), kSmallBytes).bytes;
  line.erase(std::find_if(line.rbegin(), line.rend(), [](char c) { return c != '\0'; }).base(),
             line.end());
  return line == role && is_own(thread) && is_hvdrun(thread) ? role : std::string_view();
}

// The topmost of what is left of one job here, and its agent if that lives.
struct Left {
  Known root;
  pid_t agent = 0;
  bool lives = false;
};

// Whose children have lost their parent, or may have.
bool adopts(pid_t pid) {
  const std::string name = read_file(proc(pid, "comm"), kSmallBytes).bytes;
  return pid == 1 || name == "systemd\n" || name == "init\n";
}

// In a container hvdrun may be process 1, above its own keepers.
bool is_lost(pid_t parent_of_keeper) {
  return adopts(parent_of_keeper) && !(parent_of_keeper == 1 && is_hvdrun(1));
}

std::vector<Left> find_left() {
  std::map<pid_t, std::string_view> roles;
  for (const pid_t pid : all_processes())
    if (const std::string_view role = role_of(pid); !role.empty()) roles[pid] = role;
  std::vector<Left> all;
  for (const auto& [pid, role] : roles) {
    const auto state = read_process_state(pid);
    if (!state) continue;
    if (role == kAgent) {
      // Below an agent it is a rank that has not come to its exec.
      if (!roles.contains(state->parent)) all.push_back({know(pid), pid});
      continue;
    }
    if (roles.contains(state->parent)) continue;  // an agent that has not its own name yet
    // Of parent 0 is who was brought into a container from outside, as by docker exec.
    Left left{know(pid), 0, !is_lost(state->parent)};
    for (const Descendant& one : descendants(pid))
      if (one.parent == pid && role_of(one.pid) == kAgent) left.agent = one.pid;
    all.push_back(left);
  }
  return all;
}

// Of the environment that a process began with, as /proc has it.
std::string_view value_of(std::string_view environment, std::string_view name) {
  while (!environment.empty()) {
    const std::string_view entry = environment.substr(0, environment.find('\0'));
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=')
      return entry.substr(name.size() + 1);
    environment.remove_prefix(std::min(entry.size() + 1, environment.size()));
  }
  return {};
}

// The agent below which this orphan would be, if that lived; "" for all others. Who asks is none.
std::string lost_agent_of(pid_t pid, const std::string& job) {
  const auto state = read_process_state(pid);
  if (!state || state->parent <= 0 || !adopts(state->parent)) return {};
  const pid_t thread = living_thread(pid);
  if (thread == 0 || !is_own(thread) || !role_of(pid).empty() || !ancestry(getpid(), pid).empty())
    return {};
  const std::string environment = read_file(proc(thread, "environ"), kEnvironmentBytes).bytes;
  if (!job.empty() && value_of(environment, "TORCHELASTIC_RUN_ID") != job) return {};
  const std::string_view address = value_of(environment, "HVD_AGENT");
  const std::string agent(address.substr(0, address.find(':')));
  if (agent.size() != kAgentNameBytes ||
      agent.find_first_not_of("0123456789abcdef") != std::string::npos)
    return {};
  const FileText sockets =
      read_file(proc(thread, "net/unix"), kSocketsBytes);  // where it looked for it
  const bool gone = sockets.error == 0 && sockets.bytes.find(agent) == std::string::npos;
  return gone ? agent : std::string();
}

std::map<std::string, std::vector<Known>> find_orphans(const std::string& job) {
  std::map<std::string, std::vector<Known>> by_agent;
  for (const pid_t pid : all_processes()) {
    const Known one = know(pid);
    if (const std::string agent = lost_agent_of(pid, job); !agent.empty())
      by_agent[agent].push_back(one);
  }
  return by_agent;
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

// 0 when there is no such file.
uint64_t bytes_of(const fs::path& file) {
  std::error_code missing;
  const uint64_t bytes = fs::file_size(file, missing);
  return missing ? 0 : bytes;
}

void remove(const fs::path& path, uint64_t bytes, const CleanOrder& order,
            proto::CleanReport& report) {
  std::error_code failed;
  if (!order.dry_run) fs::remove_all(path, failed);
  if (failed) return;
  report.set_copies(report.copies() + 1);
  report.set_copy_bytes(report.copy_bytes() + bytes);
}

// Of what remote_script() makes for a copy that is not whole yet.
bool has_scrap_name(const fs::path& path) {
  const std::string name = path.filename();
  return name.starts_with(kOnceFolder) && name.size() == kOnceFolder.size() + 16 &&
         name.find_first_not_of("0123456789abcdef", kOnceFolder.size()) == std::string::npos;
}

// In the folder of a build: what a copy that a power failure broke off has left.
std::vector<fs::path> old_scraps(const fs::path& folder) {
  std::vector<fs::path> all;
  std::error_code unreadable;
  if (fs::is_symlink(folder, unreadable)) return all;
  for (const fs::path& one : entries_of(folder))
    if (has_scrap_name(one) &&
        fs::symlink_status(one, unreadable).type() == fs::file_type::regular &&
        is_older(one, kOldScrap))
      all.push_back(one);
  return all;
}

void remove_copies(const CleanOrder& order, const std::string& build, proto::CleanReport& report) {
  std::set<std::string> running;
  for (const pid_t pid : all_processes())
    running.insert(target_of(proc(living_thread(pid), "exe")));
  const auto home = env::get("HOME");
  if (!home || home->empty()) return;
  const fs::path copies = fs::path(*home) / ".cache" / "hvdrun";
  const bool shared = other_hosts_may_use(copies.string());
  const auto drop = [&](const fs::path& path, uint64_t bytes) {
    if (shared)  // a program whose file another host removes dies as it runs on
      report.set_copies_left(report.copies_left() + 1);
    else
      remove(path, bytes, order, report);
  };
  for (const fs::path& folder : entries_of(copies)) {
    const fs::path copy = folder / "hvdrun";
    const bool is_build = folder.filename().string().find_first_not_of("0123456789abcdef_") ==
                          std::string::npos;  // what else is in there is not a host's copy
    if (!is_build) continue;
    const std::vector<fs::path> scraps = old_scraps(folder);
    for (const fs::path& scrap : scraps) drop(scrap, bytes_of(scrap));
    if (!scraps.empty() && !order.dry_run) rmdir(folder.c_str());  // where nothing else is in it
    std::error_code missing;
    const uint64_t bytes = fs::file_size(copy, missing);
    if (missing || folder.filename() == build || !is_older(copy, kOldCopy) ||
        running.contains(copy.string()))
      continue;
    drop(folder, bytes);
  }
}

// What a start that a power failure broke off has left where it could not have its build's folder.
void remove_scraps(const CleanOrder& order, proto::CleanReport& report) {
  std::vector<std::string> places = {"/tmp", "/var/tmp", "/dev/shm"};
  for (const char* name : {"TMPDIR", "XDG_RUNTIME_DIR"})
    if (const auto place = env::get(name)) places.push_back(*place);
  for (const std::string& place : distinct_folders(places))
    for (const fs::path& one : entries_of(place)) {
      std::error_code unreadable;
      if (!has_scrap_name(one) || fs::is_symlink(one) || !fs::is_directory(one, unreadable) ||
          !is_older(one, kOldScrap))
        continue;
      remove(one, bytes_of(one / one.filename()), order, report);
    }
}

void remove_shipments(const CleanOrder& order, proto::CleanReport& report) {
  for (const std::string& place : ship_places())
    *report.add_stores() =
        clean_store(place, std::chrono::seconds(kOldCopy).count(), order.dry_run);
}

std::string plural(int64_t count, const char* one, const char* many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

Deadline sooner(std::chrono::milliseconds limit, Deadline until) {
  return Deadline::at(std::min(Deadline::in(limit).when(), until.when()));
}

// What has lost its agent, over all passes: whoever is found by several is told once.
struct Orphans {
  std::map<std::string, proto::CleanReport::Job> jobs;  // by agent
  std::set<Known> seen;
  Killed killed;
};

// Those that are found while others are ended are ended too: nobody adopts what they start. False
// when the rounds, or the time, were over before no more were found.
bool end_orphans(const CleanOrder& order, Deadline until, Orphans& orphans) {
  for (int round = 0; round == 0 || (round < kOrphanRounds && !until.passed()); ++round) {
    bool more = false;
    for (auto& [agent, roots] : find_orphans(order.job)) {
      std::erase_if(roots, [&](const Known& one) { return !orphans.seen.insert(one).second; });
      if (roots.empty()) continue;
      proto::CleanReport::Job& job = orphans.jobs[agent];
      if (order.dry_run) {
        size_t all = roots.size();
        for (const Known& one : roots) all += descendants(one.pid).size();
        job.set_below(int(all));
        continue;
      }
      job.set_below(job.below() + orphans.killed.add(job, roots));
      more = true;
    }
    orphans.killed.await(sooner(round == 0 ? kEndLimit : kLaterLimit, until));
    if (!more) return true;
  }
  return false;
}

void tell(const Orphans& orphans, proto::CleanReport& report) {
  for (const auto& [agent, job] : orphans.jobs) *report.add_jobs() = job;
}

void end_jobs(const CleanOrder& order, proto::CleanReport& report) {
  Killed killed;
  for (const Left& left : find_left()) {
    proto::CleanReport::Job& job = *report.add_jobs();
    job.set_root(left.root.pid);
    job.set_agent(left.agent);
    job.set_lives(left.lives);
    job.set_own(!ancestry(getpid(), left.root.pid).empty());
    const auto below = descendants(left.root.pid);
    job.set_below(int(std::count_if(below.begin(), below.end(), [&](const Descendant& one) {
      return one.alive && one.pid != left.agent;
    })));
    if (order.dry_run || job.own() || (left.lives && !order.all)) continue;
    killed.add(job, {left.root});
  }
  killed.await(Deadline::in(kEndLimit));
}

// Its agent may still be at the end of what it ran, in which its keeper does not let it go on for
// long. Of another job it is not known which: while that lives, nothing is said of this one.
void look_for_one_job(const CleanOrder& order, proto::CleanReport& report) {
  const Deadline until = Deadline::in(kOneJobMost);
  Orphans orphans;
  end_orphans(order, Deadline::at(until.when() - kAfterFirstPass), orphans);
  const Deadline agents_end = Deadline::in(kAgentsEnd);
  while (!find_left().empty() && !agents_end.passed()) poll(nullptr, 0, 20);
  const bool all = end_orphans(order, until, orphans);
  tell(orphans, report);
  report.set_nobody(
      all && find_left().empty() &&
      std::ranges::all_of(report.jobs(), [](const auto& job) { return job.stuck() == 0; }));
  const HostIdentity here = look_at_this_host();
  report.set_boot(here.boot);
  report.set_processes(here.processes);
}

constexpr std::string_view kOthersJobs =
    "its file system may be other hosts' too, whose jobs cannot be seen from here; remove it when "
    "none of them has one";

// Paths come from that host: they are told as in_quotes() has it.
void describe_store(const proto::CleanReport::Store& store, std::vector<std::string>& lines) {
  const std::string path = in_quotes(store.path(), kPathShownMax);
  switch (store.state()) {
    case proto::CleanReport::Store::BUSY:
      return lines.push_back("did not look at " + path +
                             ": a job takes what is shipped from there; try again when it runs");
    case proto::CleanReport::Store::UNSAFE:
      return lines.push_back("did not look at " + path +
                             ": others may write to it, or put another in its place");
    case proto::CleanReport::Store::NO_LOCKS:
      return lines.push_back("did not look at " + path +
                             ": it cannot be locked, so who uses it cannot be seen; remove it when "
                             "no job does");
    case proto::CleanReport::Store::SHARED:
      if (store.trees() > 0 || store.bytes() > 0)
        lines.push_back("left alone " + size_text(store.bytes()) + " that were shipped to " + path +
                        ", and that nobody here has used for long: " + std::string(kOthersJobs));
      return;
    default:
      break;
  }
  for (const proto::CleanReport::Written& one : store.written())
    lines.push_back("left alone " + plural(one.files(), "file", "files") + ", " +
                    size_text(one.bytes()) + ", that ranks wrote in " +
                    in_quotes(one.tree(), kPathShownMax) +
                    ", which nobody has used for long; remove it when nobody needs them");
  if (store.more_written() > 0)
    lines.push_back("left alone what ranks wrote in " +
                    plural(store.more_written(), "other folder", "other folders") + " of " + path);
}

void describe_stores(const proto::CleanReport& report, const CleanOrder& order,
                     std::vector<std::string>& lines) {
  uint64_t bytes = 0;
  bool any = false;
  for (const proto::CleanReport::Store& store : report.stores()) {
    if (store.state() == proto::CleanReport::Store::CLEANED) {
      bytes += store.bytes();
      any |= store.trees() > 0 || store.bytes() > 0;
    }
  }
  if (any)
    lines.push_back(std::string(order.dry_run ? "would remove " : "removed ") +
                    std::to_string(bytes >> 20) +
                    " MiB that were shipped, and that nobody has used for long");
  for (const proto::CleanReport::Store& store : report.stores()) describe_store(store, lines);
}

}  // namespace

std::vector<std::string> role_words(const CleanOrder& order) {
  std::vector<std::string> words{"--clean"};
  if (order.dry_run) words.emplace_back("--dry-run");
  if (order.all) words.emplace_back("--all");
  if (!order.job.empty()) words.insert(words.end(), {"--job", order.job});
  return words;
}

proto::CleanReport clean_host(const CleanOrder& order, const std::string& build) {
  proto::CleanReport report;
  if (!order.job.empty()) {
    look_for_one_job(order, report);
    return report;
  }
  end_jobs(order, report);
  Orphans orphans;
  end_orphans(order, Deadline::never(), orphans);
  tell(orphans, report);
  remove_copies(order, build, report);
  remove_scraps(order, report);
  remove_shipments(order, report);
  return report;
}

bool nobody_lives(const proto::CleanReport& report, const HostIdentity& host) {
  return report.nobody() && !host.boot.empty() && report.boot() == host.boot &&
         report.processes() == host.processes;
}

std::vector<std::string> describe(const proto::CleanReport& report, const CleanOrder& order) {
  std::vector<std::string> lines;
  for (const proto::CleanReport::Job& job : report.jobs()) {
    const std::string above = job.agent() != 0  ? "agent " + std::to_string(job.agent()) + " and "
                              : job.root() != 0 ? "keeper " + std::to_string(job.root()) + " and "
                                                : "";
    const std::string what =
        "(" + above + plural(job.below(), "process", "processes") + " of its ranks)";
    const std::string whose = job.lives() ? "a job that lives " : "what a job had left ";
    if (job.ended())
      lines.push_back("ended " + whose + what +
                      (job.stuck() > 0
                           ? "; " + plural(job.stuck(), "process", "processes") + " cannot be ended"
                           : ""));
    else if (job.own())
      lines.push_back("left alone the job that this runs in " + what);
    else if (job.lives() && !order.all)
      lines.push_back("left alone a job that lives " + what + "; --all ends it, too");
    else
      lines.push_back("would end " + whose + what);
  }
  if (report.copies() > 0)
    lines.push_back((order.dry_run ? "would remove " : "removed ") +
                    plural(report.copies(), "old copy", "old copies") + " of hvdrun, " +
                    std::to_string(report.copy_bytes() >> 20) + " MiB");
  if (report.copies_left() > 0)
    lines.push_back("left alone " + plural(report.copies_left(), "old copy", "old copies") +
                    " of hvdrun in ~/.cache/hvdrun: " + std::string(kOthersJobs));
  describe_stores(report, order, lines);
  if (lines.empty()) lines.push_back("nothing was left");
  return lines;
}

}  // namespace hvd
