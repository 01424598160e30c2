#include "cli/gpu_look.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "cli/agent/process_state.h"
#include "cli/agent/worker_environment.h"
#include "cli/gpu_note.h"
#include "cli/messages.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr std::chrono::seconds kAnswerLimit{10};
constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";

std::array<GpuQuestion, 2> questions() { return {gpu_question(), use_question()}; }

GpuUser user_of(int pid) {
  if (!read_process_state(pid)) return GpuUser::kUnknown;
  return ancestry(pid, getpid()).empty() ? GpuUser::kOther : GpuUser::kOurs;
}

}  // namespace

bool wants_gpu_look(const JobSpec& spec, const std::vector<Slot>& slots) {
  const bool uses = !spec.gpus.devices.empty() || spec.gpus.share || spec.gpus.counted;
  return uses && std::ranges::any_of(slots, [&](const Slot& slot) {
           return !spec.hosts.at(size_t(slot.host)).remote;
         });
}

GpuLook::GpuLook(Loop& loop, const JobSpec& spec, const std::vector<Slot>& slots,
                 const StartState& start, std::function<void(const std::string&)> say)
    : spec_(spec),
      slots_(slots),
      start_(start),
      asked_(loop, questions(), start, Deadline::in(kAnswerLimit),
             [this, tell = std::move(say)](const NvidiaSmiAnswers& answers) {
               if (const std::string words = note(answers); !words.empty()) tell(words);
             }) {}

// The job goes on whatever comes out: what cannot be told, its program will find out.
std::string GpuLook::note(const NvidiaSmiAnswers& answers) const try {
  if (answers.trouble == NvidiaSmiAnswers::Trouble::kLate) return no_answer(answers, 0);
  if (answers.trouble != NvidiaSmiAnswers::Trouble::kNone) return "";
  std::vector<Gpu> gpus = read_gpus(answers.texts[0]);
  read_uses(answers.texts[1], gpus);
  const std::vector<std::string> users = users_environment(spec_, start_);
  std::optional<std::string> visible;
  if (is_set_in(users, kVisible)) visible = value_in(users, kVisible, "");
  return gpu_note(gpus, gpus_of_ranks(spec_, slots_, visible, gpus), user_of);
} catch (const Error&) {
  return "";
}

}  // namespace hvd
