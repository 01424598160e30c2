// The life of a job; `hvdrun agent` is the role on each host and not for users.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>

#include "cli/agent/agent.h"
#include "cli/agent/remote_agent.h"
#include "cli/agent/worker_environment.h"
#include "cli/clean.h"
#include "cli/command_line.h"
#include "cli/environment_settings.h"
#include "cli/exit_code.h"
#include "cli/host_choice.h"
#include "cli/job_check.h"
#include "cli/job_log.h"
#include "cli/local_carrier.h"
#include "cli/messages.h"
#include "cli/plan.h"
#include "cli/ship/read_shipment.h"
#include "cli/signals.h"
#include "cli/supervisor.h"
#include "rendezvous/slots.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

void say(const std::string& words) { std::fprintf(stderr, "hvdrun: %s\n", words.c_str()); }

void print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    throw Error(ErrorCode::kUnavailable, std::string("cannot write to standard output: ") +
                                             std::strerror(errno) + "; send it somewhere else");
  }
}

// What a rank would find in its environment beside what hvdrun has itself.
std::vector<std::string> variables_of_ranks(const JobSpec& spec, const StartState& start,
                                            const World& world) {
  // Only names are wanted, so any place will do.
  const WorkerPlace place{.world = world,
                          .job = "job",
                          .agent_address = "address",
                          .master_address = "address",
                          .master_port = 1,
                          .threads_each = 1};
  return changed_names(start.environment,
                       worker_environment(users_environment(spec, start), {}, place));
}

// This machine's ranks find everything where it is.
bool ships(const JobSpec& spec, const std::vector<Slot>& slots) {
  return !spec.ship.empty() && std::ranges::any_of(slots, [&](const Slot& slot) {
    return spec.hosts.at(size_t(slot.host)).remote;
  });
}

// Returns the exit status, or does not return when hvdrun has to end by a signal.
int run(int argc, char** argv, const StartState& start) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == "clean")
    return run_clean(std::span(words).subspan(1), env::get);
  CommandLine line = parse_command_line(words, env::get);
  if (line.request == Request::kShow) {
    print(line.text);
    return 0;
  }
  find_hosts(line);
  find_environment(line, start.environment);
  const JobSpec& spec = line.spec;
  for (const std::string& warning : line.warnings)
    if (wants_warnings(spec)) say(warning);
  const std::vector<Slot> slots = assign_slots(spec.hosts, spec.size);
  if (const auto refusal = check_job(spec, slots, users_environment(spec, start))) {
    say(refusal->message);
    return refusal->exit_code;
  }
  std::optional<ShipOffer> offer;
  if (ships(spec, slots)) {
    settle_signals();
    const ReadProgress progress{wants_warnings(spec) ? say : nullptr};
    offer = read_shipment(spec, users_environment(spec, start), progress);
    if (!offer->left_out.empty() && wants_warnings(spec)) say(left_out_text(*offer));
  }
  if (line.request == Request::kDryRun) {
    print(plan_text(spec, slots, variables_of_ranks(spec, start, slots[0].world)) +
          (offer ? plan_text(*offer) : ""));
    return 0;
  }
  LocalCarrier carrier;
  const ExitStatus status = supervise(spec, slots, start, carrier, offer ? &*offer : nullptr);
  if (status.raise_signal != 0) die_by(status.raise_signal);
  return status.code;
}

}  // namespace
}  // namespace hvd

int main(int argc, char** argv) {
  mallopt(M_ARENA_MAX, 1);  // gRPC's eight threads would each map and fault in an arena
  const hvd::StartState start = hvd::take_start_state();
  if (hvd::is_agent(argc, argv)) hvd::run_agent(argc, argv);
  if (hvd::is_remote_agent(argc, argv)) hvd::run_remote_agent(argc, argv);
  int code = hvd::kExitOwnFailure;
  try {
    code = hvd::run(argc, argv, start);
  } catch (const hvd::Error& error) {
    hvd::say(error.what());
    if (error.code() == hvd::ErrorCode::kInvalidArgument ||
        error.code() == hvd::ErrorCode::kUnsupported)
      code = hvd::kExitUsage;
  } catch (const std::exception& error) {
    hvd::say(error.what());
  }
  std::fflush(nullptr);
  _exit(code);  // no thread is joined: none can be waited for in vain
}
