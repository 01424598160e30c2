#include "cli/devices.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/arguments.h"
#include "cli/gpu_table.h"
#include "cli/help.h"
#include "cli/host_choice.h"
#include "cli/nvidia_smi.h"
#include "cli/print.h"
#include "cli/quoted.h"
#include "cli/read_file.h"
#include "cli/signals.h"
#include "rendezvous/slots.h"
#include "runtime/base/error.h"
#include "runtime/base/present_gpus.h"

namespace hvd {
namespace {

constexpr std::chrono::milliseconds kAnswerLimit{10'000};
constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
constexpr std::string_view kTaken[] = {"--num-proc", "--hosts",     "--hostfile",
                                       "--devices",  "--share-gpu", "--timeout"};

using Trouble = NvidiaSmiAnswers::Trouble;

// What the command line says of ranks and hosts; nothing when it is a text that was asked for.
std::optional<CommandLine> parse_words(std::span<const std::string> words,
                                       const ReadEnvironment& read_environment) {
  const Arguments arguments = split_arguments(words);
  if (!arguments.command.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "hvdrun devices takes no command, but " + quoted(arguments.command[0]) +
                    " was given; a program called devices is started by hvdrun -np 2 ./devices");
  std::vector<std::string> of_job;
  for (const GivenOption& given : arguments.options) {
    if (given.option->name == "-h" || given.option->name == "--help") return std::nullopt;
    if (std::ranges::find(kTaken, given.option->name) == std::end(kTaken))
      throw Error(ErrorCode::kInvalidArgument,
                  std::string(shown_name(*given.option)) +
                      " means nothing to hvdrun devices, which takes -np, -H or --hostfile, "
                      "--devices, --share-gpu and --timeout");
    of_job.emplace_back(given.option->name);
    if (!given.values.empty()) of_job.back() += "=" + given.values[0];
  }
  of_job.insert(of_job.end(), {"--", "devices"});
  return parse_command_line(of_job, read_environment);
}

std::vector<Gpu> look_at_gpus(const NvidiaSmiAnswers& answers) {
  std::vector<Gpu> gpus = read_gpus(answers.texts[0]);
  read_uses(answers.texts[1], gpus);
  read_peers(answers.texts[2], gpus);
  const std::vector<ListedGpu> listed = read_list(answers.texts[3]);
  for (Gpu& gpu : gpus) {
    for (const ListedGpu& one : listed)
      if (one.uuid == gpu.listed.uuid) gpu.listed.parts = one.parts;
    constexpr size_t kNumberBytesMax = 16;
    const FileText node =
        read_file("/sys/bus/pci/devices/" + pci_folder(gpu.pci) + "/numa_node", kNumberBytesMax);
    const bool known = node.error == 0 && !node.bytes.empty() && node.bytes[0] != '-';
    if (known) gpu.numa_node = std::atoi(node.bytes.c_str());
  }
  return gpus;
}

GpuPlan seen_by_ranks(const GpuOptions& options, const std::optional<std::string>& visible,
                      std::span<const Gpu> gpus) {
  GpuPlan plan;
  plan.shared = options.share;
  if (!options.devices.empty()) {
    std::vector<ListedGpu> listed;
    for (const Gpu& gpu : gpus) listed.push_back(gpu.listed);
    check_gpu_list("--devices", options.devices, listed);
    plan.source = "--devices";
    plan.seen = seen_gpus(options.devices, gpus);
    plan.ordered_by_bus = true;
    return plan;
  }
  std::optional<std::vector<GpuName>> names;
  if (visible) names = names_visible_to_cuda(*visible);
  plan.source = kVisible;
  plan.seen = seen_gpus(names, gpus);
  // Of the parts of divided GPUs CUDA shows a process one.
  if (!plan.seen.empty() && !plan.seen[0].part.empty()) plan.seen.resize(1);
  return plan;
}

// Where its ranks stand, and how many there are without a word of them: one for each GPU.
void add_ranks(CommandLine line, GpuPlan& plan) {
  const bool is_said = line.spec.size > 0 || line.host_list || line.host_file;
  if (!is_said) {
    for (size_t rank = 0; rank < plan.seen.size(); ++rank) plan.ranks.push_back(int(rank));
    return;
  }
  find_hosts(line);
  for (const Slot& slot : assign_slots(line.spec.hosts, line.spec.size)) {
    const bool remote = line.spec.hosts[size_t(slot.host)].remote;
    (remote ? plan.other_ranks : plan.ranks).push_back(slot.world.rank);
  }
}

int say_no_gpu(const std::string& why) {
  std::fprintf(stderr, "hvdrun: %s\n", why.c_str());
  return kExitNoGpu;
}

}  // namespace

int run_devices(std::span<const std::string> words, const ReadEnvironment& read_environment,
                const StartState& start) {
  const std::optional<CommandLine> line = parse_words(words, read_environment);
  if (!line) {
    print(full_help());
    return 0;
  }
  settle_signals();
  const GpuQuestion questions[] = {gpu_question(), use_question(), peer_question(),
                                   list_question()};
  const auto limit = line->spec.timeout;
  const NvidiaSmiAnswers answers =
      ask_nvidia_smi(questions, start, limit.count() > 0 ? limit : kAnswerLimit);
  const int present = present_gpus();
  if (const std::string why = no_answer(answers, present); !why.empty()) {
    if (answers.trouble == Trouble::kMissing && present == 0) return say_no_gpu(why);
    throw Error(ErrorCode::kUnavailable, why);
  }
  if (says_no_gpu(answers.texts[0]))
    return say_no_gpu("NVIDIA's driver finds no GPU here; give the container or the job some");
  const std::vector<Gpu> gpus = look_at_gpus(answers);
  const std::optional<std::string> visible = read_environment(kVisible);
  GpuPlan plan = seen_by_ranks(line->spec.gpus, visible, gpus);
  plan.ordered_by_bus |= read_environment("CUDA_DEVICE_ORDER").value_or("") == "PCI_BUS_ID";
  add_ranks(*line, plan);
  print(gpu_table(gpus, plan));
  if (!plan.seen.empty()) return 0;
  return say_no_gpu(std::string(kVisible) + "=" + quoted(*visible) +
                    " leaves no GPU; unset it, or name some");
}

}  // namespace hvd
