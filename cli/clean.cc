#include "cli/clean.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/agent/clean_host.h"
#include "cli/agent/descendants.h"
#include "cli/agent/worker_environment.h"
#include "cli/arguments.h"
#include "cli/exit_code.h"
#include "cli/help.h"
#include "cli/host_choice.h"
#include "cli/loop.h"
#include "cli/quoted.h"
#include "cli/signals.h"
#include "cli/ssh/ssh_carrier.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr const char* kSelf = "/proc/self/exe";
constexpr std::string_view kTaken[] = {"--hosts",       "--hostfile", "--ssh-port",
                                       "--ssh-command", "--ssh-arg",  "--ssh-identity-file",
                                       "--wait-hosts",  "--dry-run",  "--start-timeout"};

void tell(const std::string& host, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) std::printf("%s: %s\n", host.c_str(), line.c_str());
  std::fflush(stdout);
}

std::vector<std::string> role_words(const CleanOrder& order) {
  std::vector<std::string> words{"--clean"};
  if (order.dry_run) words.emplace_back("--dry-run");
  if (order.all) words.emplace_back("--all");
  return words;
}

// Hosts of the list that are reached by ssh: each runs the cleaning there and says what came of it.
class RemoteCleaning {
 public:
  RemoteCleaning(const JobSpec& spec, CleanOrder order)
      : spec_(spec),
        order_(order),
        file_(kSelf),
        child_ends_({SIGCHLD}, 0),
        carrier_(
            loop_, file_,
            {.ssh = spec.ssh,
             .environment = environ,
             .path = env::get("PATH").value_or(std::string(kDefaultPath)),
             .role = role_words(order)},
            {.started = [this](int host, AgentChannels channels,
                               const std::string& words) { on_told(host, words, channels.pid); },
             .failed =
                 [this](int host, const std::string& reason) {
                   --waiting_;
                   failed_ = true;
                   std::fprintf(stderr, "hvdrun: %s: cannot be cleaned: %s\n", name(host).c_str(),
                                reason.c_str());
                 }}) {
    loop_.watch(child_ends_.fd(), EPOLLIN, [this](uint32_t) {
      child_ends_.take();
      reap_all([this](pid_t pid, int status) { carrier_.child_ended(pid, status); });
    });
  }

  // False when a host could not be looked at.
  bool run() {
    for (size_t host = 0; host < spec_.hosts.size(); ++host) {
      if (!spec_.hosts[host].remote) continue;
      ++waiting_;
      carrier_.start(int(host), spec_.hosts[host],
                     Deadline::in(spec_.host_wait + spec_.start_timeout),
                     Deadline::in(spec_.host_wait));
    }
    for (carrier_.turn(Clock::now()); waiting_ > 0; carrier_.turn(Clock::now()))
      loop_.turn(carrier_.next_deadline());
    return !failed_;
  }

 private:
  std::string name(int host) const { return spec_.hosts[size_t(host)].name; }

  // Its channels close with our return, and so its ssh ends.
  void on_told(int host, const std::string& words, pid_t) {
    --waiting_;
    proto::CleanReport report;
    if (report.ParseFromString(words)) return tell(name(host), describe(report, order_));
    failed_ = true;
    std::fprintf(stderr, "hvdrun: %s: what came from there is no report\n", name(host).c_str());
  }

  const JobSpec& spec_;
  const CleanOrder order_;
  Loop loop_;
  AgentFile file_;
  SignalReader child_ends_;
  int waiting_ = 0;
  bool failed_ = false;
  SshCarrier carrier_;
};

}  // namespace

int run_clean(std::span<const std::string> words, const ReadEnvironment& read_environment) {
  CleanOrder order;
  std::vector<std::string> of_job;
  const Arguments arguments = split_arguments(words);
  if (!arguments.command.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "hvdrun clean takes no command, but " + quoted(arguments.command[0]) +
                    " was given; a program called clean is started by hvdrun -np 2 ./clean");
  for (const GivenOption& given : arguments.options) {
    if (given.option->name == "-h" || given.option->name == "--help") {
      std::fputs(full_help().c_str(), stdout);
      return 0;
    }
    if (given.option->name == "--all") {
      order.all = true;
      continue;
    }
    if (std::ranges::find(kTaken, given.option->name) == std::end(kTaken))
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(shown_name(*given.option)) +
                      " means nothing to hvdrun clean, which takes -H or --hostfile, --dry-run, "
                      "--all, and what says how hosts are reached");
    order.dry_run |= given.option->name == "--dry-run";
    of_job.emplace_back(given.option->name);
    of_job.insert(of_job.end(), given.values.begin(), given.values.end());
  }
  of_job.insert(of_job.end(), {"-np", "1", "--", "clean"});
  CommandLine line = parse_command_line(of_job, read_environment);
  find_hosts(line);
  bool done = true;
  for (const Host& host : line.spec.hosts)
    if (!host.remote) tell(host.name, describe(clean_host(order, AgentFile(kSelf).name()), order));
  std::signal(SIGPIPE, SIG_IGN);
  if (std::ranges::any_of(line.spec.hosts, [](const Host& host) { return host.remote; }))
    done = RemoteCleaning(line.spec, order).run();
  return done ? 0 : kExitOwnFailure;
}

}  // namespace hvd
