#include "cli/job_check.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/agent/worker_environment.h"
#include "cli/exit_code.h"
#include "cli/frame.h"
#include "cli/interfaces.h"
#include "cli/look.h"
#include "cli/quoted.h"
#include "cli/rank_folder.h"
#include "cli/result_place.h"
#include "cli/this_machine.h"
#include "runtime/base/env.h"
#include "runtime/base/open_files.h"
#include "runtime/base/unique_fd.h"

namespace hvd {
namespace {

constexpr int kOwnDescriptors = 18;  // what hvdrun opens beside those of ranks, at least
constexpr int kHostDescriptors = 4;  // of another host: ssh's pipes, and what its agent opens
// In what a host's ranks are started from, at most: around a word, of a rank's place without its
// host's name, and of all that has no word here.
constexpr size_t kFieldBytes = 16, kWorldBytes = 64, kStartBytesOfRest = 64u << 10;

std::optional<Refusal> check_command_here(const JobSpec& spec, std::string path) {
  const bool own_paths = std::ranges::any_of(spec.environment, [](const EnvironmentSetting& one) {
    return one.name == "PATH" && !one.ranks.empty();
  });
  if (own_paths && spec.command[0].find('/') == spec.command[0].npos)
    return std::nullopt;  // as each rank finds it
  return check_command({.command = spec.command,
                        .program = "",
                        .directory = spec.directory,
                        .path = std::move(path),
                        .start = "hvdrun -np " + std::to_string(spec.size)});
}

std::optional<Refusal> check_working_directory() {
  char here[PATH_MAX];
  if (getcwd(here, sizeof here) != nullptr) return std::nullopt;
  return Refusal{kExitUsage, std::string("the working directory cannot be used: ") +
                                 std::strerror(errno) + "; go to another or name one by --wdir"};
}

std::optional<Refusal> check_directory(const std::string& path) {
  const Look look = look_at(path);
  int error = look.error;
  if (error == 0 && !look.is_directory) error = ENOTDIR;
  if (error == 0 && !look.may_execute) error = EACCES;
  if (error == 0) return std::nullopt;
  return Refusal{kExitUsage, "--wdir " + in_quotes(path) + " cannot be used: " +
                                 std::strerror(error) + "; name another directory"};
}

std::string parent_of(const std::string& path) {
  const size_t name_end = path.find_last_not_of('/');
  const size_t slash = name_end == path.npos ? path.npos : path.rfind('/', name_end);
  if (slash == path.npos) return path.starts_with('/') ? "/" : ".";
  const size_t end = path.find_last_not_of('/', slash);
  return end == path.npos ? "/" : path.substr(0, end + 1);
}

// The kernel's own file systems let root write anywhere, and make no file.
bool keeps_files(const std::string& path) {
  struct statfs facts;
  return statfs(path.c_str(), &facts) != 0 ||
         (facts.f_type != PROC_SUPER_MAGIC && facts.f_type != SYSFS_MAGIC);
}

// Something is there by that name, a link to nowhere perhaps, so that mkdir() would fail.
bool is_taken(const std::string& path) {
  struct stat facts;
  return lstat(path.c_str(), &facts) == 0;
}

// Why no file can be made in there; empty: it can.
std::string trouble_with_folder(const std::string& path, const Look& look) {
  if (look.error == ENOENT && is_taken(path)) return "it is a link to nowhere";
  if (look.error != 0) return std::strerror(look.error);
  if (!look.is_directory) return std::strerror(ENOTDIR);
  if (!may(path, W_OK | X_OK)) return std::strerror(errno);
  return keeps_files(path) ? "" : std::strerror(EROFS);
}

// Why the file cannot be written; empty: it can. One that is there is written again.
std::string trouble_with_file(const std::string& path) {
  const auto [place, descriptor, refusal] = find_result_place(path);  // where a link leads
  if (!refusal.empty()) return refusal;
  const Look look = look_at(path);
  if (look.error == ENOENT) {
    const std::string parent = parent_of(place);
    return trouble_with_folder(parent, look_at(parent));
  }
  if (look.error != 0) return std::strerror(look.error);
  if (look.is_directory) return std::strerror(EISDIR);
  if (look.is_socket) return "it is a socket";
  return may(path, W_OK) ? "" : std::strerror(errno);
}

std::optional<Refusal> refuse_output(const JobSpec& spec, const std::string& path,
                                     const std::string& trouble) {
  if (trouble.empty()) return std::nullopt;
  return Refusal{kExitUsage, "--output-filename " + in_quotes(spec.output_directory) +
                                 " cannot be written to: " + in_quotes(path) + ": " + trouble +
                                 "; name another directory"};
}

// Whether files can be made in the directory, which is made itself if it is not there.
std::optional<Refusal> check_output_directory(const JobSpec& spec) {
  std::string nearest = spec.output_directory;  // of what leads to it the deepest that is there
  Look look = look_at(nearest);
  while (look.error == ENOENT && !is_taken(nearest) && nearest != "/" && nearest != ".") {
    nearest = parent_of(nearest);
    look = look_at(nearest);
  }
  auto refusal = refuse_output(spec, nearest, trouble_with_folder(nearest, look));
  for (int rank = 0;
       rank < spec.size && !refusal && nearest == spec.output_directory && !spec.size_open;
       ++rank) {
    const std::string folder = rank_folder(nearest, rank, spec.size);
    const Look at_rank = look_at(folder);
    if (at_rank.error == ENOENT && !is_taken(folder)) continue;
    refusal = refuse_output(spec, folder, trouble_with_folder(folder, at_rank));
    for (const char* name : kRankFiles)
      if (!refusal) refusal = refuse_output(spec, folder + name, trouble_with_file(folder + name));
  }
  return refusal;
}

// Whether it comes into being with --output-filename.
bool will_be_made(const JobSpec& spec, const std::string& folder) {
  return !spec.output_directory.empty() && look_at(folder).error == ENOENT &&
         is_folder_of_output(folder, spec.output_directory, spec.size);
}

// What stands in the file would go with it: another takes its place.
bool is_output_of_hvdrun(const std::string& path) {
  struct stat file, output;
  if (stat(path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return false;
  return std::ranges::any_of(std::array{STDOUT_FILENO, STDERR_FILENO}, [&](int descriptor) {
    return fstat(descriptor, &output) == 0 && output.st_dev == file.st_dev &&
           output.st_ino == file.st_ino;
  });
}

std::string trouble_with_result(const JobSpec& spec, const std::string& path) {
  if (will_be_made(spec, path) || (path.ends_with('/') && look_at(path).error == ENOENT))
    return std::strerror(EISDIR);
  if (!spec.output_directory.empty() && is_file_of_output(path, spec.output_directory, spec.size))
    return "it is a rank's own (--output-filename)";
  if (is_output_of_hvdrun(path)) return "hvdrun's output goes there";
  if (look_at(path).error == ENOENT && will_be_made(spec, parent_of(path))) return "";
  return trouble_with_file(path);
}

std::optional<Refusal> check_result_file(const JobSpec& spec) {
  const std::string& path = spec.result_file;
  const ResultPlace place = find_result_place(path);
  std::string trouble;
  if (place.descriptor >= 0) {
    const int flags = fcntl(place.descriptor, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY) trouble = std::strerror(EBADF);
  } else {
    trouble = trouble_with_result(spec, place.path);
  }
  if (trouble.empty()) return std::nullopt;
  return Refusal{kExitUsage, "--result-file " + in_quotes(path) + " cannot be written: " + trouble +
                                 "; name another file"};
}

// Whether there is what reaches other hosts, where it will be looked for.
std::optional<Refusal> check_ssh(const std::string& program) {
  const bool has_path = program.find('/') != program.npos;
  const bool found = has_path
                         ? look_at(program).is_program()
                         : is_on_path({.command = std::span(&program, 1),
                                       .program = "",
                                       .directory = "",
                                       .path = env::get("PATH").value_or(std::string(kDefaultPath)),
                                       .start = ""});
  if (found) return std::nullopt;
  const bool has_words = program.find(' ') != program.npos;
  return Refusal{kExitOwnFailure,
                 "cannot run " + in_quotes(program) + ", which is to reach other hosts; " +
                     (has_words ? "--ssh-command names a program alone: each word more goes by an "
                                  "--ssh-arg of its own, as in --ssh-arg=-v"
                                : "install it, or name another by --ssh-command")};
}

std::optional<Refusal> check_ssh_arguments(std::span<const std::string> arguments) {
  const std::string objection = objection_to_words(arguments);
  if (objection.empty()) return std::nullopt;
  return Refusal{kExitUsage, objection};
}

// ssh goes on without a key that it cannot read, and then says only that others were refused.
std::optional<Refusal> check_identity(const std::string& file) {
  const bool ssh_expands = file.starts_with('~') || file.find_first_of("%$") != file.npos;
  if (file.empty() || ssh_expands || access(file.c_str(), R_OK) == 0) return std::nullopt;
  return Refusal{kExitUsage, "-i: " + in_quotes(file) + " cannot be read: " + std::strerror(errno) +
                                 "; name the file of your private key"};
}

// Whether each rank can have its files and each other host its connections: found out before any
// is made, and before gRPC, which aborts where it finds no room.
std::optional<Refusal> check_descriptors(const JobSpec& spec, int other_hosts) {
  const int files = spec.output_directory.empty() ? 0 : spec.size * int(std::size(kRankFiles));
  if (files + other_hosts == 0) return std::nullopt;
  std::vector<UniqueFd> held(size_t(files + other_hosts * kHostDescriptors + kOwnDescriptors));
  for (UniqueFd& one : held) {
    one.reset(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (one) continue;
    const std::string reason = std::strerror(errno);
    std::string what;
    if (files > 0) what = "the " + std::to_string(files) + " files of --output-filename";
    if (other_hosts > 0)
      what += (what.empty() ? "" : " and ") + std::string("the connections to ") +
              std::to_string(other_hosts) + (other_hosts == 1 ? " host" : " hosts");
    return Refusal{kExitOwnFailure, what + " cannot all be open: " + reason + "; hvdrun needs " +
                                        std::to_string(held.size()) + " more: " + kRaiseOpenFiles};
  }
  return std::nullopt;
}

// Whether what --output-ranks names is there; how many ranks there are is not said by -np alone.
std::optional<Refusal> check_output_ranks(const JobSpec& spec) {
  if (spec.output_ranks.empty() || spec.output_ranks.back() < spec.size) return std::nullopt;
  return Refusal{kExitUsage,
                 "--output-ranks names rank " + std::to_string(spec.output_ranks.back()) +
                     ", but the last of " + std::to_string(spec.size) + " ranks is " +
                     std::to_string(spec.size - 1) + "; leave it out or start more ranks"};
}

// Whether the ranks of each -x@RANKS are there.
std::optional<Refusal> check_variables(const JobSpec& spec) {
  for (const EnvironmentSetting& one : spec.environment) {
    if (one.ranks.empty() || one.ranks.back() < spec.size) continue;
    const std::string rank = std::to_string(one.ranks.back());
    return Refusal{kExitUsage, "-x@" + rank + " " + in_quotes(one.name) +
                                   " is for a rank that is not there: the last of " +
                                   std::to_string(spec.size) + " ranks is " +
                                   std::to_string(spec.size - 1)};
  }
  return std::nullopt;
}

// What the longest message to a host has beside what is in all: the places of its ranks, and what
// -x@ says of them.
size_t bytes_of_longest(const JobSpec& spec, std::span<const Slot> slots) {
  std::map<int, size_t> of_hosts;
  for (const Slot& slot : slots) of_hosts[slot.host] += slot.world.host.size() + kWorldBytes;
  for (const EnvironmentSetting& one : spec.environment) {
    const size_t entry = one.name.size() + one.value.value_or("").size() + 2 * kFieldBytes;
    std::optional<int> last;
    for (const int rank : one.ranks) {
      if (size_t(rank) >= slots.size()) break;  // where it will be is not known yet
      const int host = slots[size_t(rank)].host;
      of_hosts[host] += kFieldBytes + (host == last ? 0 : entry);
      last = host;
    }
  }
  return std::ranges::max(of_hosts | std::views::values);
}

// Whether what each host's ranks are started from goes into a message, as long as it may become.
std::optional<Refusal> check_length(const JobSpec& spec, std::span<const Slot> slots,
                                    std::span<const std::string> environment) {
  size_t bytes = kStartBytesOfRest + bytes_of_longest(spec, slots);
  for (const std::string& word : spec.command) bytes += word.size() + kFieldBytes;
  for (const std::string& entry : environment) bytes += entry.size() + kFieldBytes;
  for (const EnvironmentSetting& one : spec.environment)
    if (one.ranks.empty()) bytes += one.name.size() + kFieldBytes;
  if (bytes <= kFrameBytesMax) return std::nullopt;
  return Refusal{kExitUsage,
                 "the command, the environment of ranks and what -x@ says of them are " +
                     std::to_string(bytes) + " bytes together; a host takes " +
                     std::to_string(kFrameBytesMax) + ": put what is long into a file"};
}

// Whether other hosts could reach this machine on a network of --network-interface, which it need
// not have where it has no ranks.
std::optional<Refusal> check_networks(const JobSpec& spec, bool has_ranks) {
  if (spec.networks.empty()) return std::nullopt;
  const std::vector<InterfaceAddress> all = look_at_interfaces();
  const std::vector<InterfaceAddress> found = find_network(all, spec.networks);
  const bool leads_here = std::ranges::any_of(
      found, [](const InterfaceAddress& one) { return may_lead_here(one.address); });
  if (leads_here || (found.empty() && !has_ranks)) return std::nullopt;
  return Refusal{kExitUsage, no_such_network(all, spec.networks)};
}

// What bare containers lack: without the first a rank would read what is its agent's, without the
// second hvdrun does not find its own program, without the third whom to end.
std::optional<Refusal> check_container() {
  const auto refusal = [](const std::string& what, const std::string& where) {
    const int error = errno;
    const bool descriptors = error == EMFILE || error == ENFILE;
    const std::string advice = descriptors ? kRaiseOpenFiles : "the container needs " + where;
    return Refusal{kExitOwnFailure, what + ": " + std::strerror(error) + "; " + advice};
  };
  if (!UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC)))
    return refusal("/dev/null cannot be opened", "/dev mounted");
  struct stat facts;
  if (lstat("/proc/self/exe", &facts) != 0)
    return refusal("/proc/self/exe cannot be read", "/proc: mount -t proc proc /proc");
  if (const std::string why = why_descendants_are_unseen(); !why.empty())
    return Refusal{kExitOwnFailure, why};
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> check_ranks(const JobSpec& spec, std::span<const Slot> slots,
                                   std::span<const std::string> environment) {
  auto refusal = check_output_ranks(spec);
  if (!refusal) refusal = check_variables(spec);
  if (!refusal) refusal = check_length(spec, slots, environment);
  return refusal;
}

std::optional<Refusal> check_job(const JobSpec& spec, std::span<const Slot> slots,
                                 std::span<const std::string> environment) {
  bool here = false;  // what another host has, its agent finds out
  std::set<int> others;
  for (const Slot& slot : slots) {
    if (spec.hosts.at(size_t(slot.host)).remote)
      others.insert(slot.host);
    else
      here = true;
  }
  auto refusal = spec.size_open ? check_length(spec, slots, environment)
                                : check_ranks(spec, slots, environment);
  if (!refusal && !others.empty()) refusal = check_networks(spec, here);
  if (!refusal && !others.empty()) refusal = check_identity(spec.ssh.identity_file);
  if (!refusal && !others.empty()) refusal = check_ssh_arguments(spec.ssh.arguments);
  if (!refusal && !spec.directory.starts_with('/')) refusal = check_working_directory();
  if (!refusal && here && !spec.directory.empty()) refusal = check_directory(spec.directory);
  const bool has_files = !spec.output_directory.empty();
  if (!refusal && has_files) refusal = check_output_directory(spec);
  if (!refusal && !spec.result_file.empty()) refusal = check_result_file(spec);
  // What is no mistake of the command line; the result file, which may be written, says so too.
  if (!refusal) refusal = check_container();
  if (!refusal && here)
    refusal = check_command_here(spec, value_in(environment, "PATH", kDefaultPath));
  if (!refusal && !others.empty()) refusal = check_ssh(spec.ssh.program);
  if (!refusal) refusal = check_descriptors(spec, int(others.size()));
  return refusal;
}

}  // namespace hvd
