// Asks nvidia-smi, which comes with NVIDIA's driver, several questions at once.
//
// It may take seconds, or hang with the driver: whoever asks waits for no longer than a deadline.
// Its processes end with the object, unless the driver holds one. Lives on its owner's loop and
// thread; who reaps children meanwhile meets its own.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/gpus.h"
#include "cli/loop.h"
#include "cli/start_state.h"
#include "runtime/base/unique_fd.h"

namespace hvd {

struct NvidiaSmiAnswers {
  enum class Trouble { kNone, kMissing, kFailed, kLate };
  Trouble trouble = Trouble::kNone;
  std::string why;                 // of kFailed
  std::vector<std::string> texts;  // one for each question, which may be words of an error
};

class NvidiaSmi {
 public:
  using Answered = std::function<void(const NvidiaSmiAnswers&)>;

  // Call as spawn(). `answered` is called once, by a turn, also of a failed start.
  NvidiaSmi(Loop& loop, std::span<const GpuQuestion> questions, const StartState& start,
            Deadline deadline, Answered answered);
  ~NvidiaSmi();
  NvidiaSmi(const NvidiaSmi&) = delete;
  NvidiaSmi& operator=(const NvidiaSmi&) = delete;

  bool waiting() const { return answered_ != nullptr; }
  void turn(TimePoint now);
  std::optional<TimePoint> next_deadline() const;

 private:
  struct Asked {
    UniqueFd out;  // closed: it has said all
    pid_t pid;     // of a process group, too
    UniqueFd process;
  };
  void ask(const GpuQuestion& question, const StartState& start);
  void on_readable(size_t question);
  void close(Asked& one);

  Loop& loop_;
  const Deadline deadline_;
  Answered answered_;
  std::vector<Asked> asked_;
  NvidiaSmiAnswers answers_;
};

// Why there are none, and what to do; empty: there are some. `may_have_gpus` as that function says.
// Pure.
std::string no_answer(const NvidiaSmiAnswers& answers, bool may_have_gpus);

// Waits for the answers.
NvidiaSmiAnswers ask_nvidia_smi(std::span<const GpuQuestion> questions, const StartState& start,
                                std::chrono::milliseconds limit);

}  // namespace hvd
