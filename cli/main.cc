// The life of a job; `hvdrun agent` is the role on each host and not for users.
#include <fcntl.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include "cli/agent/agent.h"
#include "cli/agent/worker_environment.h"
#include "cli/command_line.h"
#include "cli/exit_code.h"
#include "cli/host_choice.h"
#include "cli/job_check.h"
#include "cli/local_carrier.h"
#include "cli/plan.h"
#include "cli/signals.h"
#include "cli/supervisor.h"
#include "rendezvous/slots.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

// 0, 1 and 2 that are closed become /dev/null, so that no socket of ours lands there.
void fill_standard_fds() {
  for (int fd = 0; fd < 3; ++fd)
    if (fcntl(fd, F_GETFD) < 0)
      open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY);  // lowest free = fd
}

// Core dumps off (they would hold the job's secrets), as many descriptors as allowed. Returns what
// workers get back.
std::vector<RlimitValue> adjust_limits() {
  std::vector<RlimitValue> before;
  for (int resource : {int(RLIMIT_CORE), int(RLIMIT_NOFILE)}) {
    rlimit limit{};
    getrlimit(__rlimit_resource_t(resource), &limit);
    before.push_back({resource, limit});
    limit.rlim_cur = resource == int(RLIMIT_CORE) ? 0 : limit.rlim_max;
    setrlimit(__rlimit_resource_t(resource), &limit);
  }
  return before;
}

// gRPC reads these; hvdrun and its agents must not follow what is meant for the user's program.
void forget_grpc_environment(const std::vector<std::string>& environment) {
  for (const std::string& entry : environment) {
    const std::string name = entry.substr(0, entry.find('='));
    const bool proxy = name.size() > 6 && strcasecmp(name.c_str() + name.size() - 6, "_proxy") == 0;
    if (proxy || name.rfind("GRPC_", 0) == 0) env::unset(name.c_str());
  }
}

StartState take_start_state() {
  StartState start;
  start.ignored_signals = ignored_signals();
  fill_standard_fds();
  start.limits = adjust_limits();
  for (char** entry = environ; *entry != nullptr; ++entry) start.environment.emplace_back(*entry);
  forget_grpc_environment(start.environment);
  return start;
}

void print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    throw Error(ErrorCode::kUnavailable,
                std::string("cannot write to standard output: ") + std::strerror(errno));
  }
}

// What a rank would find in its environment beside what hvdrun has itself.
std::vector<std::string> variables_of_ranks(const JobSpec& spec, const StartState& start,
                                            const World& world) {
  std::vector<std::string> users = start.environment, chosen;
  for (const EnvironmentSetting& setting : spec.environment) {
    chosen.push_back(setting.name);
    if (setting.value) users.push_back(setting.name + "=" + *setting.value);
  }
  // Only names are wanted, so any place will do.
  const WorkerPlace place{.world = world,
                          .job = "job",
                          .agent_address = "address",
                          .master_address = "address",
                          .master_port = 1,
                          .threads_each = 1};
  return changed_names(start.environment, worker_environment(users, chosen, place));
}

// Returns the exit status, or does not return when hvdrun has to end by a signal.
int run(int argc, char** argv, const StartState& start) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  CommandLine line = parse_command_line(words, env::get);
  if (line.request == Request::kShow) {
    print(line.text);
    return 0;
  }
  find_hosts(line);
  for (const std::string& warning : line.warnings)
    std::fprintf(stderr, "hvdrun: %s\n", warning.c_str());
  const JobSpec& spec = line.spec;
  const std::vector<Slot> slots = assign_slots(spec.hosts, spec.size);
  if (const auto refusal = check_job(spec, env::get("PATH").value_or(""))) {
    std::fprintf(stderr, "hvdrun: %s\n", refusal->message.c_str());
    return refusal->exit_code;
  }
  if (line.request == Request::kDryRun) {
    print(plan_text(spec, slots, variables_of_ranks(spec, start, slots[0].world)));
    return 0;
  }
  LocalCarrier carrier;
  const ExitStatus status = supervise(spec, slots, start, carrier);
  if (status.raise_signal != 0) die_by(status.raise_signal);
  return status.code;
}

}  // namespace
}  // namespace hvd

int main(int argc, char** argv) {
  mallopt(M_ARENA_MAX, 1);  // gRPC's eight threads would each map and fault in an arena
  const hvd::StartState start = hvd::take_start_state();
  if (argc == 2 && std::strcmp(argv[1], "agent") == 0) hvd::run_agent(argc, argv);
  int code = hvd::kExitOwnFailure;
  try {
    code = hvd::run(argc, argv, start);
  } catch (const hvd::Error& error) {
    std::fprintf(stderr, "hvdrun: %s\n", error.what());
    if (error.code() == hvd::ErrorCode::kInvalidArgument ||
        error.code() == hvd::ErrorCode::kUnsupported)
      code = hvd::kExitUsage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hvdrun: %s\n", error.what());
  }
  std::fflush(nullptr);
  _exit(code);  // no thread is joined: none can be waited for in vain
}
