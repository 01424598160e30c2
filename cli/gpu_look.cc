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
#include "runtime/base/present_gpus.h"

namespace hvd {
namespace {

constexpr std::chrono::seconds kAnswerLimit{10};
// Whoever asks a driver first waits until it has woken its GPUs, as the first rank would without
// nvidia-smi; more than that is not worth a note.
constexpr std::chrono::milliseconds kPatience{2000};
constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";

std::array<GpuQuestion, 3> questions() { return {gpu_question(), use_question(), list_question()}; }

// Before any rank is there nobody is one, also who cannot be looked at here.
GpuUser user_of(int pid, bool ranks_started) {
  if (!ranks_started) return GpuUser::kOther;
  if (!read_process_state(pid)) return GpuUser::kUnknown;
  return ancestry(pid, getpid()).empty() ? GpuUser::kOther : GpuUser::kOurs;
}

bool may_see_gpus(const std::vector<std::string>& users) {
  if (is_set_in(users, kVisible) && names_visible_to_cuda(value_in(users, kVisible, "")).empty())
    return false;
  return present_gpus() > 0;
}

}  // namespace

bool wants_gpu_look(const JobSpec& spec, const std::vector<Slot>& slots, const StartState& start) {
  const bool here = std::ranges::any_of(
      slots, [&](const Slot& slot) { return !spec.hosts.at(size_t(slot.host)).remote; });
  if (!here) return false;
  const bool uses = !spec.gpus.devices.empty() || spec.gpus.share || spec.gpus.counted;
  return uses || may_see_gpus(users_environment(spec, start));
}

GpuLook::GpuLook(Loop& loop, const JobSpec& spec, const std::vector<Slot>& slots,
                 const StartState& start, Events events)
    : spec_(spec),
      slots_(slots),
      start_(start),
      events_(std::move(events)),
      // What else holds up the start is named when --start-timeout is over.
      patience_(Clock::now() + std::min(kPatience, spec.start_timeout / 2)),
      asked_(loop, questions(), start, Deadline::in(kAnswerLimit),
             [this](const NvidiaSmiAnswers& answers) {
               if (const std::string words = note(answers); !words.empty()) events_.say(words);
             }) {}

void GpuLook::turn(TimePoint now) {
  asked_.turn(now);
  if (!patience_ || (asked_.waiting() && now < *patience_)) return;
  patience_.reset();
  events_.enough();
}

std::optional<TimePoint> GpuLook::next_deadline() const {
  const std::optional<TimePoint> answer = asked_.next_deadline();
  return answer && patience_ ? std::min(*answer, *patience_) : answer;
}

void GpuLook::note_start() {
  if (std::exchange(ranks_started_, true) || !asked_.waiting()) return;
  events_.say(
      "nvidia-smi has not answered yet, and ranks start: who else uses their GPUs is said "
      "when it is known");
}

// The job goes on whatever comes out: what cannot be told, its program will find out.
std::string GpuLook::note(const NvidiaSmiAnswers& answers) const try {
  if (answers.trouble == NvidiaSmiAnswers::Trouble::kLate) return no_answer(answers, 0);
  if (answers.trouble != NvidiaSmiAnswers::Trouble::kNone) return "";
  std::vector<Gpu> gpus = read_gpus(answers.texts[0]);
  read_parts(answers.texts[2], gpus);
  read_uses(answers.texts[1], gpus);
  const std::vector<std::string> users = users_environment(spec_, start_);
  std::optional<std::string> visible;
  if (is_set_in(users, kVisible)) visible = value_in(users, kVisible, "");
  return gpu_note(gpus, gpus_of_ranks(spec_, slots_, visible, gpus),
                  [this](int pid) { return user_of(pid, ranks_started_); });
} catch (const Error&) {
  return "";
}

}  // namespace hvd
