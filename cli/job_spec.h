// What the user asked for, with every default filled in.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/gpu_list.h"
#include "cli/ssh/ssh_command.h"
#include "rendezvous/listener.h"
#include "rendezvous/slots.h"

namespace hvd {

enum class StdinMode { kRank0, kNone, kAll };
enum class ColorMode { kAuto, kAlways, kNever };
enum class LogLevel { kTrace, kDebug, kInfo, kWarning, kError, kFatal };

// NAME: the launcher's value is passed on, if there is one. NAME=V: V is.
struct EnvironmentSetting {
  std::string name;
  std::optional<std::string> value;
  std::vector<int> ranks = {};  // sorted; empty: all
  bool shown = false;           // its value, which is no secret

  friend bool operator==(const EnvironmentSetting&, const EnvironmentSetting&) = default;
};

// What the options about GPUs ask for; by itself a job uses whatever its program does.
struct GpuOptions {
  std::vector<GpuName> devices;  // of each host, in the order of local ranks; empty: not said
  bool share = false;            // more ranks than GPUs
  bool counted = false;          // ranks were: one for each GPU of this machine
  bool deterministic = false;
  bool launch_blocking = false;
  std::vector<int> debug_ranks;  // in which NCCL tells what it does, sorted
};

struct JobSpec {
  int size = 0;             // ranks; 0 until slots are known when the user gave none
  bool size_open = false;   // not before other hosts have counted their GPUs; it is the least
  std::vector<Host> hosts;  // in the order given
  SshOptions ssh;           // how the remote ones are reached
  PortRange ports;          // to listen on, in a job with remote ones
  std::vector<std::string> networks;  // on which hosts reach each other; empty: where ssh does
  std::vector<std::string> command;
  // --env-file, the options that ranks read, -x; of one name the last wins, and one for certain
  // ranks over one for all.
  std::vector<EnvironmentSetting> environment;
  GpuOptions gpus;
  std::string directory;             // --wdir, as cd takes it; empty: where hvdrun was started
  std::vector<std::string> ship;     // --ship: paths here, to be sent to other hosts
  uint64_t ship_limit = 2ull << 30;  // --ship-limit: bytes, to each of them

  std::chrono::milliseconds timeout{0};         // of the whole job; 0: none
  std::chrono::milliseconds stop_grace{5'000};  // from TERM to KILL
  std::chrono::milliseconds start_timeout{
      30'000};                             // agents, spawns, and init() from the first rank's call
  std::chrono::milliseconds host_wait{0};  // for hosts to come up, before that begins
  std::chrono::milliseconds collective_timeout{0};  // of one wait while all peers live; 0: none
  std::chrono::milliseconds agent_timeout{60'000};  // of an agent's silence
  std::optional<std::chrono::seconds> stall_warning{60};  // nothing: no stall check
  std::chrono::seconds stall_shutdown{0};                 // 0: never

  std::string output_directory;   // --output-filename
  std::string result_file;        // --result-file
  bool timestamps = false;        // --prefix-output-with-timestamp
  bool tags = true;               // --no-tag-output
  std::vector<int> output_ranks;  // --output-ranks, sorted; empty: all
  ColorMode color = ColorMode::kAuto;
  StdinMode stdin_mode = StdinMode::kRank0;
  LogLevel log_level = LogLevel::kWarning;
  bool verbose = false;
};

}  // namespace hvd
