// The life of a job; `hvdrun agent` is the role on each host and not for users.
#include <malloc.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>

#include "cli/agent/agent.h"
#include "cli/agent/remote_agent.h"
#include "cli/agent/worker_environment.h"
#include "cli/arguments.h"
#include "cli/clean.h"
#include "cli/command_line.h"
#include "cli/devices.h"
#include "cli/environment_settings.h"
#include "cli/exit_code.h"
#include "cli/gpu_check.h"
#include "cli/gpu_settings.h"
#include "cli/host_choice.h"
#include "cli/job_check.h"
#include "cli/job_log.h"
#include "cli/job_record.h"
#include "cli/local_carrier.h"
#include "cli/messages.h"
#include "cli/plan.h"
#include "cli/print.h"
#include "cli/result_file.h"
#include "cli/result_place.h"
#include "cli/ship/read_shipment.h"
#include "cli/signals.h"
#include "cli/stack_room.h"
#include "cli/supervisor.h"
#include "rendezvous/slots.h"
#include "runtime/base/env.h"
#include "runtime/base/error.h"
#include "runtime/base/last_words.h"
#include "runtime/base/start_thread.h"

namespace hvd {
namespace {

constexpr std::chrono::milliseconds kReaderLimit{5000};

void say(const std::string& words) { std::fprintf(stderr, "hvdrun: %s\n", words.c_str()); }

// What the user has set himself wins.
void add_gpu_settings(JobSpec& spec, const std::vector<Slot>& slots, const StartState& start) {
  const GpuSettings all = gpu_settings(spec, slots, start.environment, start.directory);
  spec.environment.insert(spec.environment.begin(), all.variables.begin(), all.variables.end());
  for (const std::string& note : all.notes)
    if (wants_warnings(spec)) say(note);
}

// What a rank would find in its environment beside what hvdrun has itself.
std::vector<std::string> variables_of_ranks(const JobSpec& spec, const StartState& start,
                                            const std::vector<Slot>& slots) {
  // Only names are wanted, so any place will do.
  const WorkerPlace place{.world = slots[0].world,
                          .job = "job",
                          .agent_address = "address",
                          .master_address = "address",
                          .master_port = 1,
                          .interface = "interface",
                          .threads_each = 1};
  return changed_names(start.environment,
                       worker_environment(users_environment(spec, start), {}, place));
}

// This machine's ranks find everything where it is.
bool ships(const JobSpec& spec, const std::vector<Slot>& slots) {
  return !spec.ship.empty() && has_remote_ranks(spec.hosts, slots);
}

Refusal refusal_of(const std::exception& error) {
  const Error* ours = dynamic_cast<const Error*>(&error);
  const bool usage = ours != nullptr && (ours->code() == ErrorCode::kInvalidArgument ||
                                         ours->code() == ErrorCode::kUnsupported);
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return {kExitOwnFailure, memory_shortage("what hvdrun needs")};
  return {usage ? kExitUsage : kExitOwnFailure, error.what()};
}

// For who will look for the job's end in a file, where an earlier job's may be: but who was
// misunderstood finds all as it was. Returns what to say of it.
std::string write_refusal(const CommandLine& line, const std::vector<Slot>& slots, EndCause cause,
                          const Refusal& why) {
  const std::string& file = line.spec.result_file;
  if (why.exit_code == kExitUsage || line.request == Request::kDryRun || file.empty()) return "";
  settle_signals();
  JobRecord record(line.spec, slots, Clock::now());
  record.note_cause(cause, why.message);
  JobResult result = record.result(Clock::now());
  result.verdict.status = {why.exit_code, 0};
  make_folder_of_result(file, line.spec.output_directory, line.spec.size);
  return write_result_file(file, result_json(result));
}

// Says why, and returns the exit status. Nobody may look after signals any more: a reader that
// stands still is not waited for.
int give_up(const CommandLine& line, const std::vector<Slot>& slots, EndCause cause,
            const Refusal& why) {
  const std::string trouble = write_refusal(line, slots, cause, why);
  std::string words = "hvdrun: " + why.message + "\n";
  if (!trouble.empty()) words += "hvdrun: " + trouble + "\n";
  write_last_words(words, kReaderLimit);
  return why.exit_code;
}

// Returns the exit status, or does not return when hvdrun has to end by a signal.
int run_job(const CommandLine& line, const std::vector<Slot>& slots, const StartState& start) {
  const JobSpec& spec = line.spec;
  std::vector<std::string> notes;
  auto refusal = check_job(spec, slots, users_environment(spec, start));
  if (!refusal) refusal = check_devices(spec, slots, start, notes);
  if (refusal) return give_up(line, slots, EndCause::kNotStarted, *refusal);
  for (const std::string& note : notes)
    if (wants_warnings(spec)) say(note);
  std::optional<ShipOffer> offer;
  if (ships(spec, slots)) {
    settle_signals();
    const ReadProgress progress{wants_warnings(spec) ? say : nullptr};
    offer = read_shipment(spec, users_environment(spec, start), progress);
    if (!offer->left_out.empty() && wants_warnings(spec)) say(left_out_text(*offer));
  }
  if (line.request == Request::kDryRun) {
    print(plan_text(spec, slots, variables_of_ranks(spec, start, slots)) +
          (offer ? plan_text(*offer) : ""));
    return 0;
  }
  LocalCarrier carrier;
  const ExitStatus status = supervise(spec, slots, start, carrier, offer ? &*offer : nullptr);
  if (status.raise_signal != 0) die_by(status.raise_signal);
  return status.code;
}

// As run_job().
int run(int argc, char** argv, const StartState& start) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == "clean")
    return run_clean(std::span(words).subspan(1), env::get, start);
  if (!words.empty() && words[0] == "devices")
    return run_devices(std::span(words).subspan(1), env::get, start);
  CommandLine line = parse_command_line(words, env::get);
  hide_values(words, std::span(argv + 1, words.size()));
  if (line.request == Request::kShow) {
    print(line.text);
    return 0;
  }
  find_hosts(line);
  find_environment(line, start.environment);
  for (const std::string& warning : line.warnings)
    if (wants_warnings(line.spec)) say(warning);
  const std::vector<Slot> slots = plan_slots(line.spec.hosts, line.spec.size);
  add_gpu_settings(line.spec, slots, start);
  try {
    check_stack();
    return run_job(line, slots, start);
  } catch (const std::exception& error) {
    return give_up(line, slots, EndCause::kOwnFailure, refusal_of(error));
  }
}

}  // namespace
}  // namespace hvd

int main(int argc, char** argv) {
  mallopt(M_ARENA_MAX, 1);  // gRPC's eight threads would each map and fault in an arena
  const hvd::StartState start = hvd::take_start_state();
  if (hvd::is_agent(argc, argv)) hvd::run_agent(argc, argv);
  if (hvd::is_remote_agent(argc, argv)) hvd::run_remote_agent(argc, argv, start);
  int code = hvd::kExitOwnFailure;
  try {
    code = hvd::run(argc, argv, start);
  } catch (const std::exception& error) {
    const hvd::Refusal why = hvd::refusal_of(error);
    hvd::say(why.message);
    code = why.exit_code;
  }
  std::fflush(nullptr);
  _exit(code);  // no thread is joined: none can be waited for in vain
}
