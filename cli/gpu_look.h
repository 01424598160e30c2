// A look at the GPUs that a job is to use, beside its start: nvidia-smi may take seconds.
//
// Ranks wait for it, but not for long: what it finds later is told when it is, or not at all when
// they have ended by then. It looks at this machine alone; hvdrun devices asks all hosts, and waits
// for longer. Lives on the supervisor's loop.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/job_spec.h"
#include "cli/loop.h"
#include "cli/nvidia_smi.h"
#include "cli/start_state.h"
#include "rendezvous/slots.h"

namespace hvd {

// Of a job with ranks here that is known to use GPUs, or may: there are some, and its environment
// does not hide them all.
bool wants_gpu_look(const JobSpec& spec, const std::vector<Slot>& slots, const StartState& start);

class GpuLook {
 public:
  struct Events {
    std::function<void(const std::string&)> say;
    std::function<void()> enough;  // ranks need not wait for it any longer
  };
  // Call as spawn(). Both events are a turn's, `enough` once, behind what is said by then.
  GpuLook(Loop& loop, const JobSpec& spec, const std::vector<Slot>& slots, const StartState& start,
          Events events);
  void turn(TimePoint now);
  std::optional<TimePoint> next_deadline() const;
  // Ranks start: says so, once, if they do without its answer.
  void note_start();

 private:
  std::string note(const NvidiaSmiAnswers& answers) const;

  const JobSpec& spec_;
  const std::vector<Slot> slots_;
  const StartState& start_;
  const Events events_;
  std::optional<TimePoint> patience_;  // until then ranks wait
  bool ranks_started_ = false;
  NvidiaSmi asked_;
};

}  // namespace hvd
