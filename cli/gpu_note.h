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

// That so many ranks of a host are to use, in the order of their local ranks: `visible` is the
// value of CUDA_VISIBLE_DEVICES that they find.
std::vector<SeenGpu> gpus_of_ranks(const GpuOptions& options, size_t ranks,
                                   const std::optional<std::string>& visible,
                                   std::span<const Gpu> gpus);

// Why `seen` cannot be shared as --share-gpu has it, and what to do; empty: they can. `mps`: ranks
// go through CUDA's MPS, which a variable of theirs says.
std::string why_not_shared(const GpuOptions& options, size_t ranks, std::span<const SeenGpu> seen,
                           std::span<const Gpu> gpus, bool mps);

// Whose process it is; kUnknown: there is none of this number here, as for one that another
// container counts.
enum class GpuUser { kOurs, kOther, kUnknown };

// Empty: there is nothing to say. The ranks may run already: of a GPU that has one of theirs, or
// who knows whose, the memory tells nothing.
std::string gpu_note(std::span<const Gpu> gpus, std::span<const SeenGpu> seen,
                     const std::function<GpuUser(int pid)>& user);

}  // namespace hvd
