#include "cli/start_state.h"

#include <fcntl.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "runtime/base/env.h"

namespace hvd {
namespace {

// So that no socket of ours lands on 0, 1 or 2. What is to be closed by exec came with none: a
// library took the free place for itself before main(). What is written to a standard output that
// was closed is lost, and has to fail; it is not the file that standard error may go to. Who closes
// standard error wants nothing of what is said there, hvdrun's own words among it.
void fill_standard_fds() {
  for (int fd = 0; fd < 3; ++fd) {
    const int flags = fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) continue;
    int null = fd == STDOUT_FILENO ? open("/dev/zero", O_RDONLY) : open("/dev/null", O_RDWR);
    if (null < 0) null = open("/", O_PATH);  // without /dev: can be neither read nor written
    if (null < 0 || null == fd) continue;
    dup2(null, fd);
    close(null);
  }
}

// Core dumps would hold the job's secrets. A soft limit of 0 bytes stops those that go into a file
// alone; one of 1 byte, which is no room either, those that go through a pipe to a program, too
// (core(5)'s core_pattern; fs/coredump.c). Returns what workers get back.
std::vector<RlimitValue> adjust_limits() {
  std::vector<RlimitValue> before;
  for (int resource : {int(RLIMIT_CORE), int(RLIMIT_NOFILE), int(RLIMIT_MEMLOCK)}) {
    rlimit limit{};
    getrlimit(__rlimit_resource_t(resource), &limit);
    before.push_back({resource, limit});
    if (resource == int(RLIMIT_MEMLOCK)) continue;  // for other hosts alone
    const rlim_t wanted = resource == int(RLIMIT_CORE) ? 1 : limit.rlim_max;
    limit.rlim_cur = std::min(wanted, limit.rlim_max);
    setrlimit(__rlimit_resource_t(resource), &limit);
  }
  return before;
}

// The limit cannot be 1 where the hard one is 0, as many systems have it, and a dump that goes
// through a pipe is made there all the same: of nothing that is in memory (core(5)). What is
// started here inherits that, so workers get theirs back. Returns what it was.
unsigned empty_core_dumps() {
  constexpr const char* kFilter = "/proc/self/coredump_filter";
  unsigned before = 0x33;  // the kernel's own
  std::ifstream(kFilter) >> std::hex >> before;
  std::ofstream(kFilter) << "0";
  return before;
}

// A proxy that captures even loopback, switches of gRPC's own: meant for the user's program.
void forget_grpc_environment(const std::vector<std::string>& environment) {
  for (const std::string& entry : environment) {
    const std::string name = entry.substr(0, entry.find('='));
    const bool proxy = name.size() > 6 && strcasecmp(name.c_str() + name.size() - 6, "_proxy") == 0;
    if (proxy || name.rfind("GRPC_", 0) == 0) env::unset(name.c_str());
  }
}

// As a shell went there, whose links may lead elsewhere on other hosts. It may be of another
// directory: who changed to this one need not have said so.
std::string working_directory_by_name() {
  const std::string name = env::get("PWD").value_or("");
  struct stat named{}, own{};
  const bool same = name.starts_with('/') &&
                    std::filesystem::path(name).lexically_normal() == name &&
                    stat(name.c_str(), &named) == 0 && stat(".", &own) == 0 &&
                    named.st_dev == own.st_dev && named.st_ino == own.st_ino;
  return same ? name : "";
}

}  // namespace

StartState take_start_state() {
  StartState start;
  start.ignored_signals = ignored_signals();
  fill_standard_fds();
  start.limits = adjust_limits();
  start.core_filter = empty_core_dumps();
  for (char** entry = environ; *entry != nullptr; ++entry) start.environment.emplace_back(*entry);
  forget_grpc_environment(start.environment);
  std::error_code gone;
  start.directory = std::filesystem::current_path(gone).string();
  start.named_directory = working_directory_by_name();
  if (start.named_directory == start.directory) start.named_directory.clear();
  return start;
}

}  // namespace hvd
