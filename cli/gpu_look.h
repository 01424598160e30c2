// A look at the GPUs that a job is to use, beside its start: nvidia-smi may take seconds.
//
// Lives on the supervisor's loop.
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

// Only of a job that is known to use GPUs, with ranks here.
bool wants_gpu_look(const JobSpec& spec, const std::vector<Slot>& slots);

class GpuLook {
 public:
  // Call as spawn(). `say` is called by a turn, once at most.
  GpuLook(Loop& loop, const JobSpec& spec, const std::vector<Slot>& slots, const StartState& start,
          std::function<void(const std::string&)> say);
  void turn(TimePoint now) { asked_.turn(now); }
  std::optional<TimePoint> next_deadline() const { return asked_.next_deadline(); }

 private:
  std::string note(const NvidiaSmiAnswers& answers) const;

  const JobSpec& spec_;
  const std::vector<Slot> slots_;
  const StartState& start_;
  NvidiaSmi asked_;
};

}  // namespace hvd
