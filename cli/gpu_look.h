// A look at the GPUs that a job is to use, beside its start: nvidia-smi may take seconds.
//
// Ranks that are known to use GPUs wait for it, but not for long: what it finds later is told when
// it is, or not at all when they have ended by then. This machine is asked as the job begins, other
// hosts as `hvdrun devices` asks them, once they are there. Lives on the supervisor's loop.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/gpu_facts.h"
#include "cli/gpu_table.h"
#include "cli/job_spec.h"
#include "cli/loop.h"
#include "cli/nvidia_smi.h"
#include "cli/remote_errand.h"
#include "cli/start_state.h"
#include "rendezvous/slots.h"

namespace hvd {

// Where there may be something to tell of the job's GPUs, or something to do about it.
bool wants_gpu_look(const JobSpec& spec, const std::vector<Slot>& slots, const StartState& start);
// Ranks wait for a look: by the command line it is certain that they use GPUs, where a host has
// some.
bool uses_gpus(const JobSpec& spec);

class GpuLook {
 public:
  struct Events {
    std::function<void(const std::string&)> say;
    // Before ranks start, if it is known by then: the GPUs of one host; why the job cannot use its
    // own.
    std::function<void(const std::vector<ListedGpu>&)> listed;
    std::function<void(const std::string&)> refuse;
    std::function<void()> enough;  // ranks need not wait for it any longer
  };
  // Call as spawn(). Events are a turn's; `enough` comes once, behind what is known by then, and
  // only of a job that uses_gpus(), in which it waits for ask_elsewhere() if it has ranks there.
  GpuLook(Loop& loop, const JobSpec& spec, const std::vector<Slot>& slots, const StartState& start,
          Events events);
  // All hosts are there: these, by their place in the job's, are to have so many ranks, and GPUs.
  // They are asked if ranks wait for a look.
  void ask_elsewhere(const std::map<int, int>& ranks);
  void turn(TimePoint now);
  std::optional<TimePoint> next_deadline() const;
  // Ranks start: says so, once, if they were to wait for it and do without its answer.
  void note_start();
  // As RemoteErrand has them.
  void kill_ssh(pid_t pid) const;
  bool child_ended(pid_t pid, int wait_status);

 private:
  struct Place {
    std::string host;  // empty: this machine
    size_t ranks = 0;
    std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES, as they find it
  };
  bool waiting() const;
  void on_answers(const NvidiaSmiAnswers& answers);
  void on_facts(int host, size_t ranks, const GpuFacts& facts);
  void judge(const Place& place, std::span<const Gpu> gpus);
  std::string objection(const Place& place, std::span<const Gpu> gpus,
                        std::span<const SeenGpu> seen) const;

  Loop& loop_;
  const JobSpec& spec_;
  const StartState& start_;
  const Events events_;
  const bool holds_;  // ranks wait
  const Place here_;
  const Deadline deadline_;            // for this machine
  std::optional<TimePoint> patience_;  // until then ranks wait
  bool hosts_come_, ranks_started_ = false;
  std::vector<Gpu> gpus_;
  std::optional<NvidiaSmi> asked_, parts_;  // these where a GPU is divided
  std::optional<RemoteErrand> errand_;
};

}  // namespace hvd
