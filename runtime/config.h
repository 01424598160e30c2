// Every knob of the worker's side, read from the environment once, by init().
//
//   HVD_AGENT                            set by hvdrun: the agent's address and this slot
//   HVD_COLLECTIVE_TIMEOUT               seconds, may be decimal; 0, the default: none
//   HOROVOD_STALL_CHECK_DISABLE          1: no stall check
//   HOROVOD_STALL_CHECK_TIME_SECONDS     60; 0: no warning
//   HOROVOD_STALL_SHUTDOWN_TIME_SECONDS  0: never; counts by itself, unlike Horovod's, which is
//                                        ignored where it is shorter than the check's
//   HOROVOD_START_TIMEOUT                seconds, 30: how long ranks may take to meet, and NCCL to
//                                        connect their GPUs
//   HOROVOD_LOG_LEVEL                    error or fatal: no warnings on stderr
//   HVD_SHARE_GPU                        1, of hvdrun --share-gpu: ranks may have one GPU together
//   HVD_EXPECT_GPU                       1, of hvdrun --devices and the like: a rank has a GPU
//   HVD_CUDA_LIBRARY, HVD_NCCL_LIBRARY   paths of the libraries for GPUs, where these are not found
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "rendezvous/agent_socket.h"
#include "runtime/engine/engine.h"

namespace hvd {

struct Config {
  std::optional<AgentAddress> agent;  // nothing: started without hvdrun, a world of one
  EngineOptions engine;
  DeviceOptions devices;
  bool share_gpu = false;
  bool expect_gpu = false;
  std::optional<std::string> visible_devices = {};  // CUDA_VISIBLE_DEVICES

  using Lookup = std::function<std::optional<std::string>(const char* name)>;

  // Throws kInvalidArgument naming the variable that cannot be read; kUnavailable when there is no
  // agent but another launcher's variables say that there are several ranks.
  static Config read(const Lookup& lookup);
  static Config from_environment();
};

}  // namespace hvd
