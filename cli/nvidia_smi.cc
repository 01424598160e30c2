#include "cli/nvidia_smi.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "cli/agent/worker_environment.h"
#include "cli/pipe.h"
#include "cli/subprocess.h"
#include "runtime/base/error.h"

namespace hvd {
namespace {

constexpr size_t kAnswerBytesMax = 1u << 20;
constexpr std::chrono::milliseconds kEndLimit{500};  // of who is killed; the driver may hold it

using Trouble = NvidiaSmiAnswers::Trouble;

}  // namespace

NvidiaSmi::NvidiaSmi(Loop& loop, std::span<const GpuQuestion> questions, const StartState& start,
                     Deadline deadline, Answered answered)
    : loop_(loop), deadline_(deadline), answered_(std::move(answered)) {
  answers_.texts.resize(questions.size());
  for (const GpuQuestion& question : questions)
    if (answers_.trouble == Trouble::kNone) ask(question, start);
}

NvidiaSmi::~NvidiaSmi() {
  for (Asked& one : asked_) close(one);
  const Deadline limit = Deadline::in(kEndLimit);
  for (const Asked& one : asked_) {
    pollfd ended{one.process.get(), POLLIN, 0};
    while (poll(&ended, 1, limit.poll_timeout_ms()) < 0 && errno == EINTR) {
    }
    siginfo_t info{};
    waitid(P_PIDFD, id_t(one.process.get()), &info, WEXITED | WNOHANG);
  }
}

void NvidiaSmi::ask(const GpuQuestion& question, const StartState& start) try {
  Pipe out = make_pipe();
  const UniqueFd null = open_null();
  std::vector<const char*> environment;
  for (const std::string& entry : start.environment) environment.push_back(entry.c_str());
  environment.push_back(nullptr);
  SpawnOptions options;
  options.argv = {"nvidia-smi"};
  options.argv.insert(options.argv.end(), question.begin(), question.end());
  options.path = value_in(start.environment, "PATH", kDefaultPath);
  options.environment = environment.data();
  options.stdin_fd = null.get();
  options.stdout_fd = options.stderr_fd = out.write.get();
  options.new_session = true;  // a terminal's signals are hvdrun's
  options.parent_death_signal = true;
  SpawnResult child = spawn(options);
  if (child.pid == 0) {
    answers_.trouble = child.error == ENOENT ? Trouble::kMissing : Trouble::kFailed;
    answers_.why = "nvidia-smi cannot be run: " + error_text(child.error);
    return;
  }
  set_nonblocking(out.read.get());
  const size_t number = asked_.size();
  loop_.watch(out.read.get(), EPOLLIN, [this, number](uint32_t) { on_readable(number); });
  asked_.push_back({std::move(out.read), child.pid, std::move(child.pidfd)});
} catch (const Error& error) {
  answers_.trouble = Trouble::kFailed;
  answers_.why = error.what();
}

void NvidiaSmi::on_readable(size_t question) {
  Asked& one = asked_[question];
  std::string& text = answers_.texts[question];
  char bytes[16u << 10];
  const ssize_t n = read(one.out.get(), bytes, sizeof bytes);
  if (n > 0 && text.size() < kAnswerBytesMax) text.append(bytes, size_t(n));
  if (n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN))) return;
  loop_.unwatch(one.out.get());
  one.out.reset();
}

// Ends it, with what it started; one that hangs in the driver stays for as long as that holds it.
void NvidiaSmi::close(Asked& one) {
  if (one.out) loop_.unwatch(one.out.get());
  one.out.reset();
  siginfo_t info{};
  const int found = waitid(P_PIDFD, id_t(one.process.get()), &info, WEXITED | WNOHANG | WNOWAIT);
  if (found == 0) kill(-one.pid, SIGKILL);  // not reaped yet, so the number is its own
}

void NvidiaSmi::turn(TimePoint now) {
  if (!waiting()) return;
  const bool over = std::ranges::none_of(asked_, [](const Asked& one) { return bool(one.out); });
  const bool failed = answers_.trouble != Trouble::kNone;
  if (!over && !failed && !deadline_.passed(now)) return;
  if (!over && !failed) answers_.trouble = Trouble::kLate;
  for (Asked& one : asked_) close(one);
  std::exchange(answered_, nullptr)(answers_);
}

std::optional<TimePoint> NvidiaSmi::next_deadline() const {
  if (!waiting()) return std::nullopt;
  return asked_.empty() ? TimePoint{} : deadline_.when();
}

std::string no_answer(const NvidiaSmiAnswers& answers, bool may_have_gpus) {
  switch (answers.trouble) {
    case Trouble::kNone:
      return "";
    case Trouble::kFailed:
      return answers.why + "; try it by hand";
    case Trouble::kLate:
      return "nvidia-smi does not answer; try it by hand: where that hangs too, the driver does";
    case Trouble::kMissing:
      break;
  }
  if (!may_have_gpus)
    return "there is no GPU here: no /dev/nvidia0 that may be opened, and no nvidia-smi on the "
           "PATH; install NVIDIA's driver, or give the container its GPUs";
  return "nvidia-smi, which tells of GPUs, is not on the PATH; add the folder that it is in";
}

NvidiaSmiAnswers ask_nvidia_smi(std::span<const GpuQuestion> questions, const StartState& start,
                                std::chrono::milliseconds limit) {
  Loop loop;
  NvidiaSmiAnswers answers;
  NvidiaSmi asked(loop, questions, start, Deadline::in(limit),
                  [&](const NvidiaSmiAnswers& all) { answers = all; });
  for (asked.turn(Clock::now()); asked.waiting(); asked.turn(Clock::now()))
    loop.turn(asked.next_deadline());
  return answers;
}

}  // namespace hvd
