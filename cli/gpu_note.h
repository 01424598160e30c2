// The GPUs of a job that others use, or that are short of memory, in a line for its user. Pure.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/gpu_table.h"
#include "cli/job_spec.h"
#include "rendezvous/slots.h"

namespace hvd {

// That this job's ranks here are to use, in the order of their local ranks: `visible` is the value
// of CUDA_VISIBLE_DEVICES.
std::vector<SeenGpu> gpus_of_ranks(const JobSpec& spec, std::span<const Slot> slots,
                                   const std::optional<std::string>& visible,
                                   std::span<const Gpu> gpus);

// Whose process it is; kUnknown: there is none of this number here, as for one that another
// container counts.
enum class GpuUser { kOurs, kOther, kUnknown };

// Empty: there is nothing to say. The ranks may run already: of a GPU that has one of theirs, or
// who knows whose, the memory tells nothing.
std::string gpu_note(std::span<const Gpu> gpus, std::span<const SeenGpu> seen,
                     const std::function<GpuUser(int pid)>& user);

}  // namespace hvd
