#include "cli/devices.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/arguments.h"
#include "cli/exit_code.h"
#include "cli/gpu_facts.h"
#include "cli/gpu_table.h"
#include "cli/help.h"
#include "cli/host_choice.h"
#include "cli/print.h"
#include "cli/quoted.h"
#include "cli/remote_errand.h"
#include "cli/signals.h"
#include "rendezvous/slots.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr std::chrono::milliseconds kAnswerLimit{10'000};
constexpr const char *kOption = "--devices", *kVisible = "CUDA_VISIBLE_DEVICES";
constexpr std::string_view kTaken[] = {"--num-proc",          "--hosts",       "--hostfile",
                                       "--devices",           "--share-gpu",   "--timeout",
                                       "--ssh-port",          "--ssh-command", "--ssh-arg",
                                       "--ssh-identity-file", "--wait-hosts",  "--start-timeout"};

// What the command line says of ranks and hosts; nothing when it is a text that was asked for.
std::optional<CommandLine> parse_words(std::span<const std::string> words,
                                       const ReadEnvironment& read_environment) {
  const Arguments arguments = split_arguments(words);
  if (!arguments.command.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "hvdrun devices takes no command, but " + in_quotes(arguments.command[0]) +
                    " was given; a program called devices is started by hvdrun -np 2 ./devices");
  std::vector<std::string> of_job;
  for (const GivenOption& given : arguments.options) {
    if (given.option->name == "-h" || given.option->name == "--help") return std::nullopt;
    if (std::ranges::find(kTaken, given.option->name) == std::end(kTaken))
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(shown_name(*given.option)) +
                      " means nothing to hvdrun devices, which takes -np, -H or --hostfile, "
                      "--devices, --share-gpu, --timeout, and what says how hosts are reached");
    of_job.emplace_back(given.option->name);
    if (!given.values.empty()) of_job.back() += "=" + given.values[0];
  }
  of_job.insert(of_job.end(), {"--", "devices"});
  return parse_command_line(of_job, read_environment);
}

GpuPlan seen_by_ranks(const GpuOptions& options, const GpuFacts& facts, std::span<const Gpu> gpus) {
  GpuPlan plan;
  plan.shared = options.share;
  if (!options.devices.empty()) {
    std::vector<ListedGpu> listed;
    for (const Gpu& gpu : gpus) listed.push_back(gpu.listed);
    check_gpu_list(kOption, options.devices, listed);
    plan.source = kOption;
    plan.seen = named_gpus(options.devices, gpus);
    plan.order_known = true;  // names have their own, and ranks count indices by bus
    return plan;
  }
  std::optional<std::vector<GpuName>> names;
  if (facts.visible) names = names_visible_to_cuda(*facts.visible);
  plan.seen = seen_by_cuda(names, gpus);
  plan.order_known = facts.order == "PCI_BUS_ID" ||
                     (names && !names->empty() && (*names)[0].kind != GpuName::Kind::kIndex);
  const bool part = !plan.seen.empty() && !plan.seen[0].part.empty();
  if (names)
    plan.source = kVisible;
  else if (part)
    plan.source = "CUDA, which shows a program one part of a divided GPU and nothing else";
  return plan;
}

// Shows hosts one by one, and keeps the worst of what they come to.
class Report {
 public:
  Report(const JobSpec& spec, std::vector<Slot> slots)
      : spec_(spec), slots_(std::move(slots)), alone_(spec.hosts.size() == 1) {}

  void show(int host, const GpuFacts& facts) try {
    if (const std::string why = no_gpu(facts); !why.empty()) return say(host, why, kExitNoGpu);
    const std::vector<Gpu> gpus = gpus_of(facts);
    GpuPlan plan = seen_by_ranks(spec_.gpus, facts, gpus);
    plan.ranks = ranks_of(host, plan.seen.size());
    const std::string heading = alone_ ? "" : printable(spec_.hosts[size_t(host)].name) + ":\n";
    if (const int error = try_print(heading + gpu_table(gpus, plan)); error != 0)
      unwritten_ = error;
    const auto in_trouble =
        std::ranges::any_of(gpus, [](const Gpu& gpu) { return !gpu.trouble.empty(); });
    if (plan.seen.empty())
      say(host,
          facts.visible ? std::string(kVisible) + "=" + in_quotes(*facts.visible) +
                              " leaves no GPU; unset it, or name some"
          : in_trouble ? "no GPU here is of use; reset or repair who does not answer"
                       : "every GPU here has MIG on but no MIG device; make some, or switch it "
                         "off, by nvidia-smi mig",
          kExitNoGpu);
  } catch (const Error& error) {
    say(host, error.what(),
        error.code() == ErrorCode::kInvalidArgument ? kExitUsage : kExitOwnFailure);
  }

  void say(int host, const std::string& words, int status) {
    const std::string name = alone_ ? "" : printable(spec_.hosts[size_t(host)].name) + ": ";
    std::fprintf(stderr, "hvdrun: %s%s\n", name.c_str(), words.c_str());
    status_ = std::max(status_, status);
  }

  int finish() const {
    check_printed(unwritten_);
    return status_;
  }

 private:
  // Without a word of how many there are, one for each GPU.
  std::vector<int> ranks_of(int host, size_t gpus) const {
    std::vector<int> ranks;
    if (slots_.empty())
      for (size_t rank = 0; rank < gpus; ++rank) ranks.push_back(int(rank));
    for (const Slot& slot : slots_)
      if (slot.host == host) ranks.push_back(slot.world.rank);
    return ranks;
  }

  const JobSpec& spec_;
  const std::vector<Slot> slots_;
  const bool alone_;
  int status_ = 0, unwritten_ = 0;
};

}  // namespace

int run_devices(std::span<const std::string> words, const ReadEnvironment& read_environment,
                const StartState& start) {
  std::optional<CommandLine> line = parse_words(words, read_environment);
  if (!line) {
    print(full_help());
    return 0;
  }
  JobSpec& spec = line->spec;
  const bool is_said = spec.size > 0 || line->host_list || line->host_file;
  if (is_said)
    find_hosts(*line);
  else
    spec.hosts = {{"localhost", "", 0}};
  Report report(spec, is_said ? assign_slots(spec.hosts, spec.size) : std::vector<Slot>());
  settle_signals();
  const auto limit = spec.timeout.count() > 0 ? spec.timeout : kAnswerLimit;
  for (size_t host = 0; host < spec.hosts.size(); ++host)
    if (!spec.hosts[host].remote) report.show(int(host), look_at_gpu_facts(start, limit));
  if (std::ranges::none_of(spec.hosts, &Host::remote)) return report.finish();
  spec.start_timeout += limit;
  run_errand(spec, start, {"--devices", std::to_string(limit.count())},
             {.told =
                  [&](int host, const std::string& message) {
                    proto::GpuFacts facts;
                    if (!facts.ParseFromString(message)) return false;
                    report.show(host, from_proto(facts));
                    return true;
                  },
              .failed =
                  [&](int host, const std::string& reason) {
                    report.say(host, "cannot be asked: " + reason, kExitOwnFailure);
                  }});
  return report.finish();
}

}  // namespace hvd
