#include "cli/gpu_check.h"

#include <algorithm>
#include <chrono>

#include "cli/agent/worker_environment.h"
#include "cli/exit_code.h"
#include "cli/nvidia_smi.h"
#include "cli/signals.h"
#include "runtime/base/error.h"
#include "runtime/base/present_gpus.h"

namespace hvd {
namespace {

constexpr std::chrono::milliseconds kAnswerLimit{5'000};
constexpr const char *kOption = "--devices", *kVisible = "CUDA_VISIBLE_DEVICES";

bool are_indices(std::span<const GpuName> names) {
  return std::ranges::all_of(names,
                             [](const GpuName& one) { return one.kind == GpuName::Kind::kIndex; });
}

// What ranks here are given of them, if none is given to two.
std::span<const GpuName> taken_here(const JobSpec& spec, std::span<const Slot> slots) {
  size_t count = 0;
  for (const Slot& slot : slots)
    if (!spec.hosts.at(size_t(slot.host)).remote)
      count = std::max(count, size_t(slot.world.local_rank) + 1);
  return std::span(spec.gpus.devices).first(std::min(count, spec.gpus.devices.size()));
}

std::vector<ListedGpu> counted_gpus(int present) {
  std::vector<ListedGpu> gpus;
  for (int index = 0; index < present; ++index) gpus.push_back({index, "", {}});
  return gpus;
}

}  // namespace

std::optional<Refusal> check_devices(const JobSpec& spec, std::span<const Slot> slots,
                                     const StartState& start, std::vector<std::string>& notes) {
  const std::vector<GpuName>& names = spec.gpus.devices;
  const bool here = std::ranges::any_of(
      slots, [&](const Slot& slot) { return !spec.hosts.at(size_t(slot.host)).remote; });
  if (names.empty() || !here) return std::nullopt;
  std::optional<std::vector<GpuName>> visible;
  if (is_set_in(start.environment, kVisible))
    visible = names_visible_to_cuda(value_in(start.environment, kVisible, ""));
  const int present = present_gpus();
  try {
    std::vector<ListedGpu> gpus = counted_gpus(present);
    const bool files_tell = present > 0 && !gpus_are_divided();
    if (!files_tell || !are_indices(names) || (visible && !are_indices(*visible))) {
      settle_signals();
      const GpuQuestion question = list_question();
      const NvidiaSmiAnswers answers = ask_nvidia_smi(std::span(&question, 1), start, kAnswerLimit);
      const std::string why = no_answer(answers, may_have_gpus());
      if (answers.trouble == NvidiaSmiAnswers::Trouble::kLate) {
        notes.push_back("the GPUs of --devices go unchecked: " + why);
        return std::nullopt;
      }
      if (!why.empty()) return Refusal{kExitOwnFailure, "--devices cannot be used: " + why};
      gpus = read_list(answers.texts[0]);
    }
    check_gpu_list(kOption, names, gpus);
    if (visible) check_visible(kOption, names, *visible, gpus);
    if (!spec.gpus.share) check_parts(kOption, taken_here(spec, slots), gpus);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInvalidArgument) return Refusal{kExitUsage, error.what()};
    return Refusal{kExitOwnFailure, std::string("--devices cannot be used: ") + error.what()};
  }
  return std::nullopt;
}

}  // namespace hvd
