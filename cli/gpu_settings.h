// What the options about GPUs come to: variables that ranks find.
//
// Pure. What the user says of such a variable, by -x, --env-file or in the environment, wins. The
// variables of --share-gpu were chosen by NCCL 2.28's source and have not met a device yet.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/job_spec.h"
#include "rendezvous/slots.h"

namespace hvd {

struct GpuSettings {
  std::vector<EnvironmentSetting> variables;  // to stand before those of the job
  std::vector<std::string> notes;             // to be said once
};

// Throws kInvalidArgument when a host has more ranks than --devices names GPUs, and --share-gpu is
// not given; once more when it is known which hosts are one.
void check_ranks_of_gpus(const JobSpec& spec, std::span<const Slot> slots);
// Whether a host elsewhere that has so many GPUs has those that --devices names by index: of names
// nothing is known from here, nor of a host whose files tell of none. Throws kInvalidArgument.
void check_devices_of(const JobSpec& spec, const std::string& host, int gpus);

// `environment` is what hvdrun was started with, `directory` where; the job's own variables are
// complete. Throws as check_ranks_of_gpus(), and kInvalidArgument when options contradict each
// other or the job.
GpuSettings gpu_settings(const JobSpec& spec, std::span<const Slot> slots,
                         std::span<const std::string> environment, const std::string& directory);

// For the shortened names of --devices, also where ranks find them, those of these GPUs.
void take_whole_names(JobSpec& spec, std::span<const ListedGpu> gpus);

}  // namespace hvd
