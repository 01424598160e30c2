#include "cli/clean.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string_view>
#include <vector>

#include "cli/agent/clean_host.h"
#include "cli/arguments.h"
#include "cli/exit_code.h"
#include "cli/help.h"
#include "cli/host_choice.h"
#include "cli/print.h"
#include "cli/quoted.h"
#include "cli/remote_errand.h"
#include "cli/signals.h"
#include "cli/ssh/agent_file.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr const char* kSelf = "/proc/self/exe";
constexpr std::string_view kTaken[] = {"--hosts",       "--hostfile", "--ssh-port",
                                       "--ssh-command", "--ssh-arg",  "--ssh-identity-file",
                                       "--wait-hosts",  "--dry-run",  "--start-timeout"};

using Tell = std::function<void(const std::string& host, const proto::CleanReport& report)>;

// Those hosts of the list that are reached by ssh. False when one could not be looked at.
bool clean_remote_hosts(JobSpec spec, const StartState& start, const CleanOrder& order,
                        const Tell& tell) {
  spec.start_timeout += kCleaningMost;
  const auto name = [&](int host) { return with_user(spec.hosts[size_t(host)]); };
  bool done = true;
  run_errand(spec, start, role_words(order),
             {.told =
                  [&](int host, const std::string& message) {
                    proto::CleanReport report;
                    if (!report.ParseFromString(message)) return false;
                    tell(name(host), report);
                    return true;
                  },
              .failed =
                  [&](int host, const std::string& reason) {
                    done = false;
                    std::fprintf(stderr, "hvdrun: %s: cannot be cleaned: %s\n", name(host).c_str(),
                                 reason.c_str());
                  }});
  return done;
}

}  // namespace

int run_clean(std::span<const std::string> words, const ReadEnvironment& read_environment,
              const StartState& start) {
  CleanOrder order;
  std::vector<std::string> of_job;
  const Arguments arguments = split_arguments(words);
  if (!arguments.command.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "hvdrun clean takes no command, but " + in_quotes(arguments.command[0]) +
                    " was given; a program called clean is started by hvdrun -np 2 ./clean");
  for (const GivenOption& given : arguments.options) {
    if (given.option->name == "-h" || given.option->name == "--help") {
      print(full_help());
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
    // In one word: a word of ssh's may be an option of hvdrun as well (--ssh-arg=-v).
    of_job.emplace_back(given.option->name);
    if (!given.values.empty()) of_job.back() += "=" + given.values[0];
  }
  of_job.insert(of_job.end(), {"-np", "1", "--", "clean"});
  CommandLine line = parse_command_line(of_job, read_environment);
  find_hosts(line);
  settle_signals();
  bool done = true;
  int unwritten = 0;  // an error, said at the end: hosts are cleaned all the same
  const Tell tell = [&](const std::string& host, const proto::CleanReport& report) {
    for (const std::string& text : describe(report, order))
      if (const int error = try_print(host + ": " + text + "\n"); error != 0) unwritten = error;
  };
  for (const Host& host : line.spec.hosts)
    if (!host.remote) tell(host.name, clean_host(order, AgentFile(kSelf).name()));
  if (std::ranges::any_of(line.spec.hosts, [](const Host& host) { return host.remote; }))
    done = clean_remote_hosts(line.spec, start, order, tell);
  check_printed(unwritten);
  return done ? 0 : kExitOwnFailure;
}

}  // namespace hvd
