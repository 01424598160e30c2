// All that a host has to tell of its GPUs, as it comes: who shows it reads it.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/gpus.h"
#include "cli/nvidia_smi.h"
#include "cli/start_state.h"
#include "proto/rendezvous.pb.h"

namespace hvd {

struct GpuFacts {
  NvidiaSmiAnswers answers;            // to the questions of gpus.h, in their order there
  bool may_have_gpus = false;          // as that function says
  std::map<std::string, int> nodes;    // of NUMA, by PCI address as nvidia-smi writes it
  std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES
  std::string order;                   // CUDA_DEVICE_ORDER
};

// Of this host. Call as spawn().
GpuFacts look_at_gpu_facts(const StartState& start, std::chrono::milliseconds limit);

proto::GpuFacts to_proto(const GpuFacts& facts);
GpuFacts from_proto(const proto::GpuFacts& message);

// Pure. Throws kUnavailable, with what to do, when it is not known what GPUs there are.
std::vector<Gpu> gpus_of(const GpuFacts& facts);
// Why it is known that there is none, and what to do; empty: that is not known. Pure.
std::string no_gpu(const GpuFacts& facts);

}  // namespace hvd
