#include "cli/gpu_look.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "cli/agent/process_state.h"
#include "cli/agent/worker_environment.h"
#include "cli/gpu_note.h"
#include "cli/host_choice.h"
#include "cli/job_log.h"
#include "cli/messages.h"
#include "cli/quoted.h"
#include "runtime/base/error.h"
#include "runtime/base/present_gpus.h"

namespace hvd {
namespace {

constexpr std::chrono::milliseconds kAnswerLimit{10'000};
// Whoever asks a driver first waits until it has woken its GPUs, as the first rank would without
// nvidia-smi; more than that is not worth a note. Elsewhere there is a login before it.
constexpr std::chrono::milliseconds kPatience{2000}, kPatienceElsewhere{4000};
constexpr const char *kOption = "--devices", *kVisible = "CUDA_VISIBLE_DEVICES";

// Before any rank is there nobody is one, also who cannot be looked at here.
GpuUser user_of(int pid, bool ranks_started) {
  if (!ranks_started) return GpuUser::kOther;
  if (!read_process_state(pid)) return GpuUser::kUnknown;
  return ancestry(pid, getpid()).empty() ? GpuUser::kOther : GpuUser::kOurs;
}

bool may_see_gpus(const std::vector<std::string>& users) {
  if (is_set_in(users, kVisible) && names_visible_to_cuda(value_in(users, kVisible, "")).empty())
    return false;
  return may_have_gpus();
}

size_t ranks_here(const JobSpec& spec, const std::vector<Slot>& slots) {
  return size_t(std::ranges::count_if(
      slots, [&](const Slot& slot) { return !spec.hosts.at(size_t(slot.host)).remote; }));
}

// By names, which may be shortened.
bool names_gpus(const JobSpec& spec) {
  return std::ranges::any_of(spec.gpus.devices,
                             [](const GpuName& one) { return one.kind != GpuName::Kind::kIndex; });
}

std::optional<std::string> visible_in(const std::vector<std::string>& users) {
  if (!is_set_in(users, kVisible)) return std::nullopt;
  return value_in(users, kVisible, "");
}

}  // namespace

bool uses_gpus(const JobSpec& spec) {
  return !spec.gpus.devices.empty() || spec.gpus.share || spec.gpus.counted ||
         counts_gpus(spec.hosts);
}

bool wants_gpu_look(const JobSpec& spec, const std::vector<Slot>& slots, const StartState& start) {
  if (names_gpus(spec) || spec.gpus.share) return true;
  if (!wants_warnings(spec)) return false;
  return uses_gpus(spec) ||
         (ranks_here(spec, slots) > 0 && may_see_gpus(users_environment(spec, start)));
}

GpuLook::GpuLook(Loop& loop, const JobSpec& spec, const std::vector<Slot>& slots,
                 const StartState& start, Events events)
    : loop_(loop),
      spec_(spec),
      start_(start),
      events_(std::move(events)),
      holds_(uses_gpus(spec)),
      here_{"", ranks_here(spec, slots), visible_in(users_environment(spec, start))},
      deadline_(Deadline::in(kAnswerLimit)),
      hosts_come_(has_remote_ranks(spec.hosts, slots)) {
  if (here_.ranks > 0)
    asked_.emplace(loop, std::array{gpu_question(), use_question()}, start, deadline_,
                   [this](const NvidiaSmiAnswers& answers) { on_answers(answers); });
  // What else holds up the start is named when --start-timeout is over.
  if (holds_) patience_ = Clock::now() + std::min(kPatience, spec.start_timeout / 2);
}

void GpuLook::ask_elsewhere(const std::map<int, int>& ranks) try {
  hosts_come_ = false;
  if (!holds_ || ranks.empty()) return;
  const TimePoint now = Clock::now();
  if (patience_) patience_ = now + std::min(kPatienceElsewhere, spec_.start_timeout / 2);
  errand_.emplace(loop_, spec_, start_,
                  std::vector<std::string>{"--devices", std::to_string(kAnswerLimit.count())},
                  RemoteErrand::Events{.told =
                                           [this, ranks](int host, const std::string& message) {
                                             proto::GpuFacts facts;
                                             if (!facts.ParseFromString(message)) return false;
                                             on_facts(host, size_t(ranks.at(host)),
                                                      from_proto(facts));
                                             return true;
                                           },
                                       .failed = [](int, const std::string&) {}});
  for (const auto& [host, count] : ranks)
    errand_->start(host, kAnswerLimit, Deadline::in({}), now + 2 * kAnswerLimit);
} catch (const Error&) {
  errand_.reset();  // hvdrun's own file cannot be read
}

bool GpuLook::waiting() const {
  return hosts_come_ || (asked_ && asked_->waiting()) || (parts_ && parts_->waiting()) ||
         (errand_ && errand_->waiting());
}

void GpuLook::turn(TimePoint now) {
  if (asked_) asked_->turn(now);
  if (parts_) parts_->turn(now);
  if (errand_) errand_->turn(now);
  if (!patience_ || hosts_come_ || (waiting() && now < *patience_)) return;
  patience_.reset();
  events_.enough();
}

std::optional<TimePoint> GpuLook::next_deadline() const {
  if (patience_ && !waiting()) return TimePoint{};
  std::optional<TimePoint> soonest;
  const auto consider = [&](const std::optional<TimePoint>& at) {
    if (at && (!soonest || *at < *soonest)) soonest = at;
  };
  if (asked_) consider(asked_->next_deadline());
  if (parts_) consider(parts_->next_deadline());
  if (errand_) consider(errand_->next_deadline());
  if (!hosts_come_) consider(patience_);
  return soonest;
}

void GpuLook::note_start() {
  if (std::exchange(ranks_started_, true) || !waiting() || !holds_) return;
  if (wants_warnings(spec_))
    events_.say(
        "nvidia-smi has not answered yet, and ranks start: who else uses their GPUs is said when "
        "it is known");
}

void GpuLook::kill_ssh(pid_t pid) const {
  if (errand_) errand_->kill_ssh(pid);
}

bool GpuLook::child_ended(pid_t pid, int wait_status) {
  return errand_ && errand_->child_ended(pid, wait_status);
}

// The job goes on whatever comes out: what cannot be told, its program will find out.
void GpuLook::on_answers(const NvidiaSmiAnswers& answers) try {
  if (answers.trouble == NvidiaSmiAnswers::Trouble::kLate && wants_warnings(spec_))
    events_.say(no_answer(answers, true));
  if (answers.trouble != NvidiaSmiAnswers::Trouble::kNone) return;
  gpus_ = read_gpus(answers.texts[0]);
  const GpuQuestion list = list_question();
  const std::string uses = answers.texts[1];
  if (std::ranges::none_of(gpus_, &Gpu::divided)) {
    read_uses(uses, gpus_);
    return judge(here_, gpus_);
  }
  parts_.emplace(loop_, std::span(&list, 1), start_, deadline_,
                 [this, uses](const NvidiaSmiAnswers& listed) {
                   const bool known = listed.trouble == NvidiaSmiAnswers::Trouble::kNone;
                   read_parts(known ? listed.texts[0] : "", gpus_);
                   read_uses(uses, gpus_);  // some may be of parts
                   judge(here_, gpus_);
                 });
} catch (const Error&) {
}

void GpuLook::on_facts(int host, size_t ranks, const GpuFacts& facts) try {
  Place there{spec_.hosts.at(size_t(host)).name, ranks, facts.visible};
  // The session's own word there counts, unless the command line has one.
  const bool given = std::ranges::any_of(
      spec_.environment, [](const EnvironmentSetting& one) { return one.name == kVisible; });
  if (given) there.visible = here_.visible;
  judge(there, gpus_of(facts));
} catch (const Error&) {
}

// Why the ranks there cannot use these GPUs; empty: they can.
std::string GpuLook::objection(const Place& place, std::span<const Gpu> gpus,
                               std::span<const SeenGpu> seen) const try {
  const std::vector<GpuName>& devices = spec_.gpus.devices;
  std::vector<ListedGpu> listed;
  for (const Gpu& gpu : gpus) listed.push_back(gpu.listed);
  if (!place.host.empty() && !devices.empty()) {  // those here were checked before
    check_gpu_list(kOption, devices, listed);
    const auto taken = std::span(devices).first(std::min(place.ranks, devices.size()));
    if (!spec_.gpus.share) check_parts(kOption, taken, listed);
  }
  const bool mps = is_set_in(users_environment(spec_, start_), "CUDA_MPS_PIPE_DIRECTORY");
  return why_not_shared(spec_.gpus, place.ranks, seen, gpus, mps);
} catch (const Error& error) {
  return error.what();
}

void GpuLook::judge(const Place& place, std::span<const Gpu> gpus) {
  const std::string head = place.host.empty() ? "" : printable(place.host) + ": ";
  const std::vector<SeenGpu> seen = gpus_of_ranks(spec_.gpus, place.ranks, place.visible, gpus);
  const std::string why_not = objection(place, gpus, seen);
  if (!ranks_started_ && !why_not.empty()) return events_.refuse(head + why_not);
  std::vector<ListedGpu> listed;
  for (const Gpu& gpu : gpus) listed.push_back(gpu.listed);
  if (!ranks_started_) events_.listed(listed);
  if (!wants_warnings(spec_)) return;
  if (!why_not.empty()) events_.say(head + why_not);
  const std::string words = gpu_note(gpus, seen, [&](int pid) {
    if (!ranks_started_ || place.host.empty()) return user_of(pid, ranks_started_);
    return GpuUser::kUnknown;  // there it may be a rank of ours
  });
  if (!words.empty()) events_.say(head + words);
}

}  // namespace hvd
