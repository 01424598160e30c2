// What a worker finds in its environment.
//
// Pure. The user's environment comes first; of it only the names that say where a worker stands are
// replaced, and a switch of torchrun's that is not true here is left out.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/job_spec.h"
#include "rendezvous/world.h"

namespace hvd {

// Where a command is looked for when the environment has no PATH.
inline constexpr std::string_view kDefaultPath = "/usr/local/bin:/usr/bin:/bin";

// How many threads OpenMP, and with it PyTorch, uses in a rank.
inline constexpr const char* kThreadsVariable = "OMP_NUM_THREADS";

struct WorkerPlace {
  World world;
  std::string job;            // names this run
  std::string agent_address;  // of the socket to the agent; empty: none
  std::string master_address;
  int master_port = 0;                 // 0: none, or the user has chosen one
  int group_rank = 0, group_size = 1;  // of the host among those that have ranks
  std::string interface = {};          // that reaches the other ranks; empty: none is known
  bool interface_by_ipv6 = false;      // that is how it does
  int threads_each = 0;                // OMP_NUM_THREADS, unless the user set it; 0: leave it alone
};

// "NAME=value" of the whole environment. Of the `chosen` names MASTER_ADDR, MASTER_PORT and
// TORCHELASTIC_USE_AGENT_STORE stay as the user has them.
std::vector<std::string> worker_environment(std::span<const std::string> users,
                                            std::span<const std::string> chosen,
                                            const WorkerPlace& place);

// Says where a worker stands (RANK, WORLD_SIZE, HVD_RANK, …): always ours, whatever the user sets.
bool is_of_place(std::string_view name);

// The user's environment with what the settings say of all ranks, the later ones last: NAME=V
// replaces, and NAME alone has the value that `users` has, if any, against settings before it.
std::vector<std::string> with_settings(std::span<const std::string> users,
                                       std::span<const EnvironmentSetting> settings);
// The names that they give a value to by that.
std::vector<std::string> chosen_names(std::span<const std::string> users,
                                      std::span<const EnvironmentSetting> settings);
// The later ones replace those of the same name.
std::vector<std::string> with_entries(std::span<const std::string> users,
                                      std::span<const std::string> entries);

// What means something on the host alone where a session has it (HOME, TMPDIR, DISPLAY, which GPUs
// it was given): ranks on other hosts have it from there, unless -x names it.
std::span<const std::string_view> names_of_session();

// The value of NAME among "NAME=value" entries; the last one counts.
std::string value_in(std::span<const std::string> entries, std::string_view name,
                     std::string_view otherwise);
bool is_set_in(std::span<const std::string> entries, std::string_view name);

}  // namespace hvd
